"""How is a run also kept in a store of objects, from where another machine goes on with it?

    looked at   checkpoints that are whole → the journal → everything else
    sent        everything else → the journal → checkpoints, each with its checksums last

Whatever fsspec reaches can be the store: `s3://`, `gs://`, `file://` of a shared disk, `memory://` in tests.

Easy to get wrong: the copy is what another machine will go on from, so at any moment it must be what a kill could have
left. A journal that names trajectories which are not there, or a checkpoint before the journal of its updates, could
not be; so things are sent in the other order than they were looked at.
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

from whetstone.atomic_write import new_folder, saving
from whetstone.errors import RunDirectoryError, SaveError
from whetstone.extras import install_command
from whetstone.recipe import Resolved
from whetstone.recipe.continuing import FIXED, compare_keys, effect_of
from whetstone.recipe.yaml_text import yaml_document
from whetstone.record.checkpoint import CHECKSUMS
from whetstone.record.run_directory import run_inputs

_CHECKPOINT = re.compile(r"(?:.*/)?checkpoints/step-\d{6,}")
_JOURNALS = ("store/journal.jsonl", "store/turns.jsonl")
"""What only grows and is compared with other files when a run goes on."""
_RECIPE = "recipe.yaml"
_PROBE = "probe"


def mirror_of(
    resolved: Resolved, run_dir: Path, *, resume: bool, say: Callable[[str], None] = lambda line: None
) -> Mirror | None:
    """The store that a recipe names, tried; a run that is there and not here is fetched where it is to be resumed.

    Args:
        say: Told of what is fetched, and later of what could not be sent.

    Raises:
        RecipeError: Nothing can be written there.
        RunDirectoryError: Another run is there, or this one and it is not to be resumed.
    """
    url = resolved.recipe.scale.mirror_url
    if url is None:
        return None
    try:
        mirror = Mirror(run_dir, url, seconds=resolved.recipe.scale.mirror_interval_seconds, say=say)
        mirror.probe()
    except ImportError as error:
        hint = install_command("s3") if url.startswith(("s3:", "s3a:")) else "install what fsspec needs for it"
        raise resolved.error("scale.mirror_url", f"{url} cannot be reached: {error}; {hint}") from None
    except Exception as error:  # each kind of store has its own
        raise resolved.error("scale.mirror_url", f"nothing can be written to {url}: {_in_a_line(error)}") from None
    mirror.begin(resume=resume)
    return mirror


class Mirror:
    """A copy of a run directory in a store of objects.

    Args:
        url: As fsspec has it.
        seconds: Between two looks at what is new.
        say: Told in a line of what could not be sent; it is tried again.

    Raises:
        ImportError: A package for this kind of store is missing.
        ValueError: There is no such kind.
    """

    def __init__(self, run_dir: Path, url: str, *, seconds: float, say: Callable[[str], None]) -> None:
        self.run_dir, self.url, self.seconds, self.say = run_dir, url.rstrip("/"), seconds, say
        local = {"auto_mkdir": True} if self.url.startswith(("file:", "local:", "/")) else {}
        found: tuple[Any, str] = fsspec.core.url_to_fs(self.url, **local)
        self._store, self._root = found[0], found[1].rstrip("/")
        self._sent: dict[str, tuple[int, int]] = {}
        """File → (size, time of its last change) when it was read."""
        self._whole: set[str] = set()
        """Checkpoints that were sent, or seen to be there as they are here."""
        self._there: set[str] = set()
        """Those of which anything is there."""

    def probe(self) -> None:
        """See that something can be written and taken away."""
        self._store.pipe_file(self._at(_PROBE), b"whetstone")
        self._store.rm_file(self._at(_PROBE))

    def begin(self, *, resume: bool) -> None:
        """See what is there, and fetch it where it is to be gone on with and is not here.

        Raises:
            RunDirectoryError: See `mirror_of`.
        """
        self._store.invalidate_cache()
        if not self._store.exists(self._at(_RECIPE)):
            return
        self._there = {match[0] for name in self._names() if (match := _CHECKPOINT.match(name))}
        if not resume:
            raise RunDirectoryError(f"{self.url}: holds a run already; add --resume to go on with it, or name another")
        if (self.run_dir / _RECIPE).is_file():
            self._check_same()
        else:
            self.fetch()
            self.say(f"{self.run_dir}: fetched from {self.url}")

    def fetch(self) -> None:
        """All that is there, into a run directory that is empty or not there.

        Raises:
            RunDirectoryError: Something is in it, or a name in the store leads out of it.
            SaveError: It could not be written.
        """
        here = [path.name for path in self.run_dir.iterdir()] if self.run_dir.is_dir() else []
        if others := [name for name in here if name != ".lock"]:
            said = f"is not empty and holds no run ({sorted(others)[0]} is in it)"
            raise RunDirectoryError(f"{self.run_dir}: {said}; choose another to go on with {self.url} in")
        with saving(self.run_dir):
            shutil.rmtree(self.run_dir, ignore_errors=True)
        with new_folder(self.run_dir) as folder:
            for name in self._names():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                self._store.get_file(self._at(name), str(path))

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Send what is new now and then for as long as the block lasts, and what is left at its end.

        Raises:
            SaveError: What is left could not be sent, and the block ended well.
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
                self.say(str(error))

    def send(self) -> None:
        """Send what is new.

        Raises:
            SaveError: Something could not be sent; what is there is whole, and it can be tried again.
        """
        files = self._files()
        whole = sorted({match[0] for name in files if (match := _CHECKPOINT.match(name))})
        journals = {name: self._read(name) for name in files if name.endswith(_JOURNALS)}
        rest = [name for name in self._files() if not _CHECKPOINT.match(name) and name not in journals]
        try:
            for name in rest:
                self._send(name, self._read(name))
            for name, read in journals.items():
                self._send(name, read)
            for folder in whole:
                if folder not in self._whole:
                    self._send_checkpoint(folder)
            for folder in self._there.difference(whole):
                self._store.rm(self._at(folder), recursive=True)
                self._there.discard(folder)
        except Exception as error:  # each kind of store has its own
            said = f"{self.url}: not everything could be sent: {_in_a_line(error)}"
            raise SaveError(f"{said}; all of it is in {self.run_dir}, and --resume sends the rest") from None

    # ------------------------------------------------------------ one by one

    def _keep(self, over: threading.Event) -> None:
        said: set[str] = set()
        while not over.wait(self.seconds):
            try:
                self.send()
            except SaveError as error:
                if str(error) not in said:
                    said.add(str(error))
                    self.say(f"{error}; it is tried again every {self.seconds:g} s")

    def _files(self) -> list[str]:
        """Names of all files that are whole, in the order of their names; also of stages that are links."""
        found = []
        for folder, folders, files in os.walk(self.run_dir, followlinks=True):
            folders[:] = [name for name in folders if not _in_making(name)]
            found += [Path(folder, name) for name in files if not _in_making(name)]
        return sorted(path.relative_to(self.run_dir).as_posix() for path in found if path.is_file())

    def _read(self, name: str) -> tuple[tuple[int, int], bytes] | None:
        """(its state before it was read, its content); None where it is gone, or as it was sent."""
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
        """Its files, those that say that it is whole last; nothing where it is deleted meanwhile."""
        path, last = self.run_dir / folder, self.run_dir / folder / CHECKSUMS
        self._there.add(folder)
        try:
            for each in [*(p for p in sorted(path.rglob("*")) if p.is_file() and p != last), last]:
                name = each.relative_to(self.run_dir).as_posix()
                if self._size(name) != each.stat().st_size:  # what has this name never changes
                    self._store.put_file(str(each), self._at(name))
        except FileNotFoundError:
            if path.is_dir():
                raise
            return
        self._whole.add(folder)

    def _size(self, name: str) -> int:
        """Bytes of what is there; −1 where it is not."""
        try:
            return int(self._store.info(self._at(name))["size"])
        except FileNotFoundError:
            return -1

    def _names(self) -> list[str]:
        found = []
        for path in self._store.find(self._root):
            name = PurePosixPath(str(path)[len(self._root) :].lstrip("/"))
            if ".." in name.parts:
                raise RunDirectoryError(f"{self.url}: {name} would lie outside of the run directory")
            found.append(name.as_posix())
        return found

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _check_same(self) -> None:
        """See that what is there is this run's, and no further than it.

        Raises:
            RunDirectoryError: It is not.
        """
        stored = yaml_document(self._store.cat_file(self._at(_RECIPE)).decode(), self.url)
        own = yaml_document((self.run_dir / _RECIPE).read_text(encoding="utf-8"), str(self.run_dir))
        inputs = run_inputs(self.run_dir) or {}  # the recipe of this run can have changed, and its inputs moved
        if any(effect_of(key) == FIXED and key not in inputs for key, _ in compare_keys(stored, own)):
            raise RunDirectoryError(f"{self.url}: holds another run than {self.run_dir}; name another scale.mirror_url")
        for name in (name for name in self._names() if name.endswith(_JOURNALS[0])):
            there, here = self._store.cat_file(self._at(name)), b""
            with contextlib.suppress(FileNotFoundError):
                here = (self.run_dir / name).read_bytes()
            if here.startswith(there):
                continue
            said = "is further than" if there.startswith(here) else "is of another run than"
            raise RunDirectoryError(
                f"{self.url}: {name} {said} the one in {self.run_dir}; choose an empty --run-dir to go on from there"
            )


def _in_making(name: str) -> bool:
    return name.startswith(".") or name.endswith(".partial")


def _in_a_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(": ")
