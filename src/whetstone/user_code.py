"""Locate an exception in the user's code: file and line of the tool, reward, environment or expert that raised it.

Note:
    Only an exception that passed through a file outside Whetstone, the standard library and installed packages becomes
    one line. An exception of Whetstone keeps its traceback, or it could not be corrected.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from dataclasses import fields, is_dataclass
from pathlib import Path

from whetstone.errors import did_you_mean, exception_text, root_exception, summarize_exception

_WHETSTONE = str(Path(__file__).parent)
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_PLACE = re.compile(r"\A[^:\n]+\.py:\d+ \([^()\n]*\): ")
_MAX_FIELDS = 24


def describe_exception(error: BaseException) -> str:
    """Return type, text and place of an exception; `shop.py:12 (price): KeyError: 'x'`.

    The path starts at the topmost package of the file, so that it is the same in every working directory and on every
    machine. An exception that passed through no code of the user has no place.
    """
    place = describe_place(error)
    text = f"{summarize_exception(error)}{_describe_fields(root_exception(error))}"
    return f"{place}: {text}" if place else text


def describe_place(error: BaseException) -> str:
    """Return `shop.py:12 (price)`: the innermost line of the user's code that an exception passed through, or ""."""
    frame = _user_frame(error)
    return "" if frame is None else f"{_short_path(Path(frame.filename))}:{frame.lineno} ({frame.name})"


def remove_place(text: str) -> str:
    """Return the text of an exception without its place.

    >>> remove_place("shop.py:12 (price): KeyError: 'x'")
    "KeyError: 'x'"
    """
    return _PLACE.sub("", text)


def describe_mistake(error: BaseException) -> str | None:
    """Return a line for the terminal if an exception is of the user's code, or of a file that cannot be used."""
    frame, cause = _user_frame(error), root_exception(error)
    text = exception_text(cause).strip().partition("\n")[0]
    if frame is not None:
        path, folder = Path(frame.filename), Path.cwd()
        place = path.relative_to(folder) if path.is_relative_to(folder) else path
        what = f"{type(cause).__name__}: {text}" if text else type(cause).__name__
        return f"{place}:{frame.lineno} ({frame.name}): {what}{_describe_fields(cause)}"
    if isinstance(cause, OSError) and cause.filename is not None and cause.strerror:
        return f"{cause.filename}: {cause.strerror}"
    return None


def _user_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Return the innermost frame of the user's code, or None if there is none."""
    frames = traceback.extract_tb(root_exception(error).__traceback__)
    return next((frame for frame in reversed(frames) if _is_user_file(frame.filename)), None)


def _is_user_file(file: str) -> bool:
    return not file.startswith((_WHETSTONE, "<", *_INSTALLED))


def _short_path(path: Path) -> Path:
    """Return the path from the topmost package of a file, or its name if it is in no package."""
    root = path.parent
    while (root / "__init__.py").is_file() and root != root.parent:
        root = root.parent
    return path.relative_to(root)


def _describe_fields(error: BaseException) -> str:
    """Return the fields of an object of Whetstone that has not the one that was read, as a remedy."""
    if not isinstance(error, AttributeError) or not is_dataclass(kind := type(error.obj)):
        return ""
    if not kind.__module__.startswith("whetstone."):
        return ""
    known = [field.name for field in fields(kind)]
    known += [name for name in vars(kind) if not name.startswith("_") and name not in known]
    near = did_you_mean(str(error.name), known)
    return near if "did you mean" in near else f"; it has {', '.join(known[:_MAX_FIELDS])}"
