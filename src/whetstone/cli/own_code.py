"""Whose mistake is an exception? The place in somebody's own file, where a tool, reward or part of his raised it.

Easy to get wrong: an exception of ours must keep its traceback, or nobody can mend it. So only what came through a file
that is neither ours, nor Python's, nor an installed package's becomes one line.
"""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

import whetstone

_OURS = str(Path(whetstone.__file__).parent)
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def place_of(error: BaseException) -> str | None:
    """`shop.py:12 (price)`, the innermost line of somebody's own code that an exception came through; None: none."""
    found = [frame for frame in traceback.extract_tb(_first(error).__traceback__) if _is_own(frame.filename)]
    if not found:
        return None
    last = found[-1]
    path = Path(last.filename)
    where = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{where}:{last.lineno} ({last.name})"


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _is_own(file: str) -> bool:
    return not file.startswith((_OURS, "<", *_INSTALLED))


def line_of(error: BaseException) -> str | None:
    """The mistake in one line, where it is one of somebody's own code, or of a file that cannot be used; else None."""
    place, error = place_of(error), _first(error)
    said = str(error).strip().partition("\n")[0]
    if place is not None:
        return f"{place}: {type(error).__name__}{f': {said}' if said else ''}"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return None
