"""Atomic writes of files and folders: after a crash the path holds the old content or the new one.

Content is written to a temporary path, synced and renamed.

Note:
    Without the fsync before the rename the new name may point at an empty file after a power cut. Without the fsync of
    the folder the rename itself may be lost.
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
    """Replace the content of a file atomically; secrets in the text are masked.

    Args:
        path: File to write.
        text: New content. Secret values that this process has remembered are replaced.
        is_private: Whether only the owner can read the file (mode 0600).

    Raises:
        SaveError: If the file cannot be written; the previous content is unchanged.
    """
    aside = path.with_name(f".{path.name}.partial")
    with convert_save_errors(path, aside):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(aside, "w", encoding="utf-8", opener=_open_private if is_private else None) as file:
            file.write(mask_secrets(text))
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        _sync_folder(path.parent)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Create a folder atomically: the block fills a temporary folder that then becomes `path`.

    Yields:
        The temporary folder.

    Raises:
        SaveError: If `path` exists already (a folder cannot be replaced in one step), or if the content cannot be
            written. Nothing of the new folder remains.
    """
    if path.exists():
        raise SaveError(f"{path}: exists already; it is unchanged, nothing was saved")
    aside = path.with_name(f".{path.name}.partial")
    with convert_save_errors(path, aside):
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
def convert_save_errors(path: Path, aside: Path | None = None) -> Iterator[None]:
    """Convert a failed write into a one-line `SaveError`.

    Args:
        path: File or folder that the message names.
        aside: Temporary file or folder to delete after a failure; None: nothing is deleted.
    """
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
            raise SaveError(f"{path}: cannot be saved: {reason}; the previous content is unchanged") from error
        # safetensors wraps the operating system's error in its own type, with the code in the text
        wrapped = re.search(r"os error (\d+)", str(error))
        if wrapped is not None:
            reason = _REASONS.get(int(wrapped[1]), os.strerror(int(wrapped[1])))
            raise SaveError(f"{path}: cannot be saved: {reason}; the previous content is unchanged") from error
        # PyTorch loses the code, and reports a wrong length of the file
        if isinstance(error, RuntimeError) and ("inline_container" in str(error) or "PytorchStream" in str(error)):
            problem = "it cannot be written completely, as on a full disk"
            raise SaveError(f"{path}: cannot be saved: {problem}; the previous content is unchanged") from error
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
