"""Location of an exception in the user's code, such as a tool or a reward.

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
    """Format place, type and text of an exception: `shop.py:12 (price): KeyError: 'x'`.

    The path starts at the topmost package of the file, so that it is the same in every working directory and on every
    machine. An exception that passed through no user code has no place.
    """
    place = describe_place(error)
    text = f"{summarize_exception(error)}{_describe_fields(root_exception(error))}"
    return f"{place}: {text}" if place else text


def describe_place(error: BaseException) -> str:
    """Format the innermost line of user code of an exception: `shop.py:12 (price)`.

    Empty if the exception passed through no user code.
    """
    frame = _user_frame(error)
    return "" if frame is None else f"{_short_path(Path(frame.filename))}:{frame.lineno} ({frame.name})"


def remove_place(text: str) -> str:
    """Remove the place from a text of `describe_exception`.

    >>> remove_place("shop.py:12 (price): KeyError: 'x'")
    "KeyError: 'x'"
    """
    return _PLACE.sub("", text)


def describe_mistake(error: BaseException) -> str | None:
    """Format an exception of user code, or of an unusable file, as one line for the terminal.

    None for any other exception, which is a bug of Whetstone.
    """
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
    """Return the innermost stack frame of user code in an exception's traceback, or None."""
    frames = traceback.extract_tb(root_exception(error).__traceback__)
    return next((frame for frame in reversed(frames) if _is_user_file(frame.filename)), None)


def _is_user_file(file: str) -> bool:
    return not file.startswith((_WHETSTONE, "<", *_INSTALLED))


def _short_path(path: Path) -> Path:
    """Return the path of a file from its topmost package on; its name if it is in no package."""
    root = path.parent
    while (root / "__init__.py").is_file() and root != root.parent:
        root = root.parent
    return path.relative_to(root)


def _describe_fields(error: BaseException) -> str:
    """Format the fields of a Whetstone object of which a missing attribute was read."""
    if not isinstance(error, AttributeError) or not is_dataclass(kind := type(error.obj)):
        return ""
    if not kind.__module__.startswith("whetstone."):
        return ""
    known = [field.name for field in fields(kind)]
    known += [name for name in vars(kind) if not name.startswith("_") and name not in known]
    near = did_you_mean(str(error.name), known)
    return near if "did you mean" in near else f"; it has {', '.join(known[:_MAX_FIELDS])}"
