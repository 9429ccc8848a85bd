"""Writes are atomic, even on a full disk."""

import os

import pytest

from whetstone.atomic_write import new_folder, write_text
from whetstone.errors import SaveError


def test_text_is_replaced_atomically(tmp_path):
    path = tmp_path / "new" / "file.txt"
    write_text(path, "one")
    write_text(path, "two")
    assert path.read_text() == "two"
    assert os.listdir(path.parent) == ["file.txt"]


def test_full_disk_is_one_line_and_the_old_file_remains(small_disk):
    path = small_disk / "file.txt"
    write_text(path, "old")
    with pytest.raises(SaveError, match=r"file.txt: cannot be saved: the disk is full"):
        write_text(path, "x" * 200_000)
    assert path.read_text() == "old"
    assert os.listdir(small_disk) == ["file.txt"]


def test_folder_on_a_full_disk_leaves_nothing(small_disk):
    with pytest.raises(SaveError, match="the disk is full"), new_folder(small_disk / "folder") as folder:
        (folder / "big").write_bytes(b"x" * 200_000)
    assert os.listdir(small_disk) == []


def test_folder_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "folder"
    with new_folder(path) as folder:
        (folder / "file").write_text("x")
        assert not path.exists()
    assert (path / "file").read_text() == "x"
    assert os.listdir(tmp_path) == ["folder"]


def test_error_in_the_block_leaves_nothing_and_is_raised(tmp_path):
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "folder"):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_existing_folder_is_not_overwritten(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(SaveError, match="exists already"), new_folder(tmp_path / "folder"):
        pass
    assert os.listdir(tmp_path) == ["folder"]
