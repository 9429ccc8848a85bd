"""Mirror of a run directory in an object store, from which another machine can resume the run.

    read        complete checkpoints → the journal → everything else
    uploaded    everything else → the journal → checkpoints, each with its checksums last

Every fsspec file system can be the store: `s3://`, `gs://`, `file://` of a shared disk, `memory://` in tests.

Note:
    Another machine resumes from the mirror, so at any moment it must be in a state that an interruption could have
    left. A journal with missing trajectories, or a checkpoint without the journal of its updates, is no such state.
    Files are therefore uploaded in the reverse order of reading.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec

from whetstone.atomic_write import convert_save_errors, new_folder
from whetstone.errors import RunDirectoryError, SaveError
from whetstone.optional_dependencies import install_command
from whetstone.recipe import Resolved
from whetstone.recipe.resume_changes import FIXED, compare_keys, find_effect
from whetstone.recipe.yaml_text import yaml_document
from whetstone.record.checkpoint import CHECKSUMS
from whetstone.record.run_directory import run_inputs

_CHECKPOINT = re.compile(r"(?:.*/)?checkpoints/step-\d{6,}")
_JOURNALS = ("store/journal.jsonl", "store/turns.jsonl")
"""Append-only files that are compared with other files when a run resumes."""
_RECIPE = "recipe.yaml"
_PROBE = "probe"


def open_mirror(
    resolved: Resolved, run_dir: Path, *, resume: bool, log: Callable[[str], None] = lambda line: None
) -> Mirror | None:
    """Open the mirror of `scale.mirror_url`, and download its run if the run is resumed on this machine.

    Args:
        resolved: The recipe; without `scale.mirror_url` there is no mirror.
        run_dir: Local run directory.
        resume: Whether the run is continued.
        log: Receives lines about downloads, and later about failed uploads.

    Raises:
        RecipeError: The store cannot be reached or written to.
        RunDirectoryError: The store has another run, or has this run and `resume` is false.
    """
    url = resolved.recipe.scale.mirror_url
    if url is None:
        return None
    try:
        mirror = Mirror(run_dir, url, seconds=resolved.recipe.scale.mirror_interval_seconds, log=log)
        mirror.check_writable()
    except ImportError as error:
        hint = install_command("s3") if url.startswith(("s3:", "s3a:")) else "install what fsspec needs for it"
        raise resolved.error("scale.mirror_url", f"{url} cannot be reached: {error}; {hint}") from None
    except Exception as error:  # each kind of store has other exceptions
        raise resolved.error("scale.mirror_url", f"nothing can be written to {url}: {_in_a_line(error)}") from None
    mirror.begin(resume=resume)
    return mirror


class Mirror:
    """Mirror of a run directory in an object store. Created by `open_mirror`.

    Args:
        run_dir: Local run directory.
        url: URL for fsspec.
        seconds: Interval between two uploads.
        log: Receives a line about each failed upload, which is repeated.

    Raises:
        ImportError: If a package for this kind of store is missing.
        ValueError: If the kind of store is unknown.
    """

    def __init__(self, run_dir: Path, url: str, *, seconds: float, log: Callable[[str], None]) -> None:
        self.run_dir, self.url, self.seconds, self.log = run_dir, url.rstrip("/"), seconds, log
        local = {"auto_mkdir": True} if self.url.startswith(("file:", "local:", "/")) else {}
        located: tuple[Any, str] = fsspec.core.url_to_fs(self.url, **local)
        self._store, self._root = located[0], located[1].rstrip("/")
        self._sent: dict[str, tuple[int, int]] = {}
        """File → (size, modification time) when it was read."""
        self._whole: set[str] = set()
        """Checkpoints that were uploaded, or found to be equal in the store."""
        self._there: set[str] = set()
        """Checkpoints of which any file is in the store."""

    def check_writable(self) -> None:
        """Write and delete a test file in the store; an error of the store is raised unchanged."""
        self._store.pipe_file(self._at(_PROBE), b"whetstone")
        self._store.rm_file(self._at(_PROBE))

    def begin(self, *, resume: bool) -> None:
        """Compare the store with the local run directory, and download the run if it is missing locally.

        Args:
            resume: Whether the run is continued; otherwise a store with a run is refused.

        Raises:
            RunDirectoryError: See `open_mirror`.
        """
        self._store.invalidate_cache()
        if not self._store.exists(self._at(_RECIPE)):
            return
        self._there = {match[0] for name in self._names() if (match := _CHECKPOINT.match(name))}
        if not resume:
            raise RunDirectoryError(
                f"{self.url}: holds a run already; add --resume to continue it, or set another scale.mirror_url"
            )
        if (self.run_dir / _RECIPE).is_file():
            self._check_same()
        else:
            self.fetch()
            self.log(f"{self.run_dir}: fetched from {self.url}")

    def fetch(self) -> None:
        """Download all files of the store into an empty or missing run directory.

        Raises:
            RunDirectoryError: The directory is not empty, or a name in the store leads out of it.
            SaveError: The directory cannot be written.
        """
        names = [path.name for path in self.run_dir.iterdir()] if self.run_dir.is_dir() else []
        if others := [name for name in names if name != ".lock"]:
            problem = f"is not empty and holds no run ({sorted(others)[0]} is in it)"
            raise RunDirectoryError(
                f"{self.run_dir}: {problem}; choose an empty --run-dir to continue the run of {self.url}"
            )
        with convert_save_errors(self.run_dir):
            shutil.rmtree(self.run_dir, ignore_errors=True)
        with new_folder(self.run_dir) as folder:
            for name in self._names():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                self._store.get_file(self._at(name), str(path))

    @contextlib.contextmanager
    def upload_periodically(self) -> Iterator[None]:
        """Upload new files periodically in a thread within the block, and the remaining files at its end.

        Raises:
            SaveError: The remaining files cannot be uploaded, and the block ended without an exception.
        """
        over = threading.Event()
        sending = threading.Thread(target=self._keep, args=(over,), daemon=True)
        sending.start()
        ended_well = False
        try:
            yield
            ended_well = True
        finally:
            over.set()
            sending.join()
            try:
                self.send()
            except SaveError as error:
                if ended_well:
                    raise
                self.log(str(error))

    def send(self) -> None:
        """Upload the files that are new or changed since the last upload, and delete pruned checkpoints.

        Raises:
            SaveError: A file cannot be uploaded; the store is consistent, and the upload can be repeated.
        """
        files = self._files()
        checkpoints = sorted({match[0] for name in files if (match := _CHECKPOINT.match(name))})
        journals = {name: self._read(name) for name in files if name.endswith(_JOURNALS)}
        rest = [name for name in self._files() if not _CHECKPOINT.match(name) and name not in journals]
        try:
            for name in rest:
                self._send(name, self._read(name))
            for name, read in journals.items():
                self._send(name, read)
            for folder in checkpoints:
                if folder not in self._whole:
                    self._send_checkpoint(folder)
            for folder in self._there.difference(checkpoints):
                self._store.rm(self._at(folder), recursive=True)
                self._there.discard(folder)
        except Exception as error:  # each kind of store has other exceptions
            problem = f"{self.url}: some files could not be uploaded: {_in_a_line(error)}"
            raise SaveError(f"{problem}; all files are in {self.run_dir}, and --resume uploads the rest") from None

    # ------------------------------------------------------------ one by one

    def _keep(self, over: threading.Event) -> None:
        reported: set[str] = set()
        while not over.wait(self.seconds):
            try:
                self.send()
            except SaveError as error:
                if str(error) not in reported:
                    reported.add(str(error))
                    self.log(f"{error}; the upload is repeated every {self.seconds:g} s")

    def _files(self) -> list[str]:
        """Return the sorted names of all complete files of the run, including files of linked stages."""
        paths = []
        for folder, folders, files in os.walk(self.run_dir, followlinks=True):
            folders[:] = [name for name in folders if not _in_making(name)]
            paths += [Path(folder, name) for name in files if not _in_making(name)]
        return sorted(path.relative_to(self.run_dir).as_posix() for path in paths if path.is_file())

    def _read(self, name: str) -> tuple[tuple[int, int], bytes] | None:
        """Read a local file: ((size, modification time), content); None if the file is missing or unchanged."""
        path = self.run_dir / name
        try:
            stat = path.stat()
            state = (stat.st_size, stat.st_mtime_ns)
            return None if self._sent.get(name) == state else (state, path.read_bytes())
        except FileNotFoundError:
            return None

    def _send(self, name: str, read: tuple[tuple[int, int], bytes] | None) -> None:
        if read is not None:
            self._store.pipe_file(self._at(name), read[1])
            self._sent[name] = read[0]

    def _send_checkpoint(self, folder: str) -> None:
        """Upload the files of a checkpoint, its checksums last; stop if the checkpoint is deleted meanwhile."""
        path, last = self.run_dir / folder, self.run_dir / folder / CHECKSUMS
        self._there.add(folder)
        try:
            for each in [*(p for p in sorted(path.rglob("*")) if p.is_file() and p != last), last]:
                name = each.relative_to(self.run_dir).as_posix()
                if self._size(name) != each.stat().st_size:  # a file of a checkpoint never changes
                    self._store.put_file(str(each), self._at(name))
        except FileNotFoundError:
            if path.is_dir():
                raise
            return
        self._whole.add(folder)

    def _size(self, name: str) -> int:
        """Return the size in bytes of a file in the store; −1 if it is missing."""
        try:
            return int(self._store.info(self._at(name))["size"])
        except FileNotFoundError:
            return -1

    def _names(self) -> list[str]:
        names = []
        for path in self._store.find(self._root):
            name = PurePosixPath(str(path)[len(self._root) :].lstrip("/"))
            if ".." in name.parts:
                raise RunDirectoryError(f"{self.url}: the path {name} leads out of the run directory; remove the file")
            names.append(name.as_posix())
        return names

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _check_same(self) -> None:
        """Check that the store has the same run as the local directory, and no later state of the run.

        Raises:
            RunDirectoryError: The store has another run, or its journal is ahead of the local one.
        """
        stored = yaml_document(self._store.cat_file(self._at(_RECIPE)).decode(), self.url)
        own = yaml_document((self.run_dir / _RECIPE).read_text(encoding="utf-8"), str(self.run_dir))
        inputs = run_inputs(self.run_dir) or {}  # the recipe of this run can have changed, and its inputs moved
        if any(find_effect(key) == FIXED and key not in inputs for key, _ in compare_keys(stored, own)):
            raise RunDirectoryError(f"{self.url}: holds another run than {self.run_dir}; name another scale.mirror_url")
        for name in (name for name in self._names() if name.endswith(_JOURNALS[0])):
            uploaded, local = self._store.cat_file(self._at(name)), b""
            with contextlib.suppress(FileNotFoundError):
                local = (self.run_dir / name).read_bytes()
            if local.startswith(uploaded):
                continue
            relation = "is further than" if uploaded.startswith(local) else "is of another run than"
            raise RunDirectoryError(
                f"{self.url}: {name} {relation} the one in {self.run_dir}; choose an empty --run-dir to continue it"
            )


def _in_making(name: str) -> bool:
    return name.startswith(".") or name.endswith(".partial")


def _in_a_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(": ")
