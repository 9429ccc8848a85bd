"""How is a file or folder written so that a kill at any moment leaves the old one or the new one?

Write aside, fsync, rename. Easy to get wrong: without the fsync before the rename the new name may
point at an empty file after a power cut; without the fsync of the folder the rename itself may be lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from whetstone.errors import SaveError
from whetstone.masking import mask_secrets

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "read-only",
    errno.EFBIG: "a file may not be as large as this (ulimit -f)",
}


def write_text(path: Path, text: str, *, is_private: bool = False) -> None:
    """Replace `path` by `text`, whole or not at all. Secrets that this process knows are masked.

    Args:
        is_private: Whether only the owner can read the file (mode 0600).

    Raises:
        SaveError: It could not be written; the previous content is untouched.
    """
    aside = path.with_name(f".{path.name}.partial")
    with saving(path, aside):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(aside, "w", encoding="utf-8", opener=_open_private if is_private else None) as file:
            file.write(mask_secrets(text))
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        _sync_folder(path.parent)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill that becomes `path` on leaving the block without an error.

    Raises:
        SaveError: `path` exists already (a folder cannot be replaced in one step, so none is),
            or something in it could not be written; then nothing of it remains.
    """
    if path.exists():
        raise SaveError(f"{path}: exists already; it is kept, nothing was saved over it")
    aside = path.with_name(f".{path.name}.partial")
    with saving(path, aside):
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        yield aside
        for folder, _, names in os.walk(aside):
            for name in names:
                _sync_file(Path(folder) / name)
            _sync_folder(Path(folder))
        os.replace(aside, path)
        _sync_folder(path.parent)


@contextlib.contextmanager
def saving(path: Path, aside: Path | None = None) -> Iterator[None]:
    """Turn a failed write into one clear line, and clear what was begun in `aside`."""
    try:
        yield
    except BaseException as error:
        if aside is not None and aside.is_dir():
            shutil.rmtree(aside, ignore_errors=True)
        elif aside is not None:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
            raise SaveError(f"{path}: could not be saved: {reason}; what was there before is kept") from error
        # safetensors wraps the operating system's error in its own type, with the code in the text
        wrapped = re.search(r"os error (\d+)", str(error))
        if wrapped is not None:
            reason = _REASONS.get(int(wrapped[1]), os.strerror(int(wrapped[1])))
            raise SaveError(f"{path}: could not be saved: {reason}; what was there before is kept") from error
        # and PyTorch forgets it, and says that what it wrote is not as long as it should be
        if isinstance(error, RuntimeError) and ("inline_container" in str(error) or "PytorchStream" in str(error)):
            said = "it could not be written whole, as on a full disk"
            raise SaveError(f"{path}: could not be saved: {said}; what was there before is kept") from error
        raise


def _open_private(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)  # an unfinished file of a killed process keeps its mode
    return descriptor


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_sync_folder = _sync_file  # on POSIX a folder is synced through a descriptor just as a file is
