"""Archives between sandboxes: contents, modes and links are kept, and hostile archives lead nowhere else."""

import io
import os
import tarfile
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whetstone.sandbox import Ending, Limits
from whetstone.sandbox.archive_transfer import (
    FolderTooLargeError,
    copy_archive,
    copy_untrusted,
    has_entries,
    pack_files,
    pack_workspace,
)
from whetstone.sandbox.guest.folder_archives import pack_folder, unpack_folder


def packed(folder):
    archive = io.BytesIO()
    pack_folder(str(folder), archive)
    return io.BytesIO(archive.getvalue())


def copied(source, max_bytes=1 << 20):
    archive = io.BytesIO()
    copy_archive(source, archive, max_bytes=max_bytes)
    return io.BytesIO(archive.getvalue())


def describe_folder(folder):
    """Return the entries of a folder: mode and contents of files, targets of links, None for folders."""
    entries = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            entries[name] = os.readlink(path)
        else:
            entries[name] = None if path.is_dir() else (path.stat().st_mode & 0o777, path.read_bytes())
    return entries


def test_files_modes_and_links_are_the_same_after_a_copy_and_replace_the_ones_before(tmp_path):
    source, target = tmp_path / "source", tmp_path / "a" / "target"
    (source / "empty").mkdir(parents=True)
    (source / "ä" / ("n" * 120)).mkdir(parents=True)
    (source / "ä" / "run.sh").write_bytes(b"x" * 100_000)
    (source / "ä" / "run.sh").chmod(0o755)
    (source / "plain").write_bytes(b"")
    (source / "plain").chmod(0o644)
    (source / "link").symlink_to("/etc/passwd")
    (source / "folder_link").symlink_to("empty")
    expected = describe_folder(source)
    os.mkfifo(source / "pipe")
    target.mkdir(parents=True)
    (target / "old").write_text("old")
    unpack_folder(copied(packed(source)), str(target))
    expected["ä/run.sh"] = (0o700, b"x" * 100_000)  # the permissions of the owner
    expected["plain"] = (0o600, b"")
    assert describe_folder(target) == expected
    assert (target / "ä" / "run.sh").stat().st_mtime == int((source / "ä" / "run.sh").stat().st_mtime)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=40).filter(
            lambda name: name not in (".", "..")
        ),
        st.binary(max_size=2000),
        max_size=5,
    )
)
def test_any_names_and_contents_are_the_same_after_a_copy(tmp_path_factory, contents):
    target = tmp_path_factory.mktemp("target")
    unpack_folder(copied(io.BytesIO(pack_files(contents))), str(target))
    unpack_folder(copied(packed(target)), str(target / "repeated"))
    repeated = {path.name: path.read_bytes() for path in (target / "repeated").iterdir()}
    assert repeated == contents


def test_missing_and_empty_folders_are_archives_without_entries(tmp_path):
    (tmp_path / "link").symlink_to("/etc")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("1")
    for name in ("none", "link", "full"):
        with tempfile.TemporaryFile() as archive:
            pack_folder(str(tmp_path / name), archive)
            assert has_entries(archive) == (name == "full")
    unpack_folder(packed(tmp_path / "none"), str(tmp_path / "link"))
    assert not (tmp_path / "link").is_symlink()
    assert list((tmp_path / "link").iterdir()) == []
    assert os.path.exists("/etc/passwd")


def hostile(*entries):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as written:
        for name, kind, target in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.size = kind, target, 1 if kind == tarfile.REGTYPE else 0
            written.addfile(entry, io.BytesIO(b"1"))
    return io.BytesIO(archive.getvalue())


def test_entries_outside_of_the_folder_and_devices_are_left_out(tmp_path):
    archive = hostile(
        ("../out", tarfile.REGTYPE, ""),
        (f"{tmp_path}/absolute", tarfile.REGTYPE, ""),
        ("a/../../out", tarfile.REGTYPE, ""),
        ("device", tarfile.CHRTYPE, ""),
        ("pipe", tarfile.FIFOTYPE, ""),
        ("kept", tarfile.REGTYPE, ""),
    )
    unpack_folder(copied(archive), str(tmp_path / "target"))
    assert [path.name for path in tmp_path.rglob("*")] == ["target", "kept"]


def test_file_is_not_written_through_a_link_of_the_same_name(tmp_path):
    (tmp_path / "victim").write_text("before")
    twice = hostile(("a", tarfile.SYMTYPE, str(tmp_path / "victim")), ("a", tarfile.REGTYPE, ""))
    with pytest.raises(FileExistsError):
        unpack_folder(copied(twice), str(tmp_path / "target"))
    assert (tmp_path / "victim").read_text() == "before"


def test_limit_of_size_and_broken_archives_are_outcomes_of_the_code(tmp_path):
    limits = Limits(folder_mb=1)
    with pytest.raises(FolderTooLargeError, match="the workspace has more than 1 MiB"):
        copied(io.BytesIO(pack_files({"a": b"x" * (1 << 20), "b": b"x"})))
    for source, ending in (
        (pack_files({"a": b"x" * (1 << 20)}), Ending.OK),
        (pack_files({"a": b"x" * ((1 << 20) + 1)}), Ending.DISK),
        (b"", Ending.ERROR),
        (b"x" * 2000, Ending.ERROR),
        (pack_files({"a": b"x" * 5000})[:3000], Ending.ERROR),
    ):
        assert copy_untrusted(io.BytesIO(source), io.BytesIO(), limits).ending is ending
    (tmp_path / "a").write_bytes(b"x" * ((1 << 20) + 1))
    outcome = pack_workspace(str(tmp_path), io.BytesIO(), limits)
    assert (outcome.ending, outcome.error) == (Ending.DISK, "the workspace has more than 1 MiB or too many files")
