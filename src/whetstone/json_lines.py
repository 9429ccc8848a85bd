"""Reading of untrusted JSON Lines files, with limits on size, depth, encoding and shape.

A damaged line is one error with file, line and reason, or is left out if the caller does not need it. The last line of
a file that is appended to may be incomplete, because its writer was killed or is writing; it is ignored.

Note:
    `json.dumps` writes lone surrogates, and numbers of any size. `orjson` rejects both, so such a line is parsed by
    `json` and converted to writable values.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from whetstone.atomic_write import convert_save_errors
from whetstone.errors import RunDirectoryError, WhetstoneError

MAX_LINE_BYTES = 256 * 2**20
MAX_DEPTH = 200
"""Maximum nesting depth; functions that recurse over a value need several stack frames per level."""
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions that parsers raise for a value of an unexpected shape."""

_SURROGATE = re.compile("[\ud800-\udfff]")
"""Pattern of a lone surrogate, which a JSON escape can express and UTF-8 cannot."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file, as `iterate_lines` yields it."""

    number: int
    """Line number in the file, from 1."""
    offset: int
    """Position of the line's first byte in the file."""
    content: bytes
    """Bytes of the line with its line break; the last line of a file may have none."""
    is_too_long: bool = False
    """Whether the line exceeds the size limit: `content` is its start, and the rest of the file is not read."""


def iterate_lines(
    file: BinaryIO, *, number: int = 0, offset: int = 0, max_bytes: int = MAX_LINE_BYTES
) -> Iterator[Line]:
    """Yield the lines of a file from its current position, one at a time.

    Args:
        file: File that is open for reading bytes.
        number: Number of lines before that position.
        offset: Number of bytes before that position.
        max_bytes: Maximum size of a line; a longer line is the last one that is yielded.
    """
    while content := file.readline(max_bytes + 1):
        number += 1
        is_too_long = len(content) > max_bytes and not content.endswith(b"\n")
        yield Line(number, offset, content, is_too_long)
        if is_too_long:
            return
        offset += len(content)


def read_objects(
    path: Path,
    parse: Callable[[dict[str, Any]], T],
    *,
    on_damage: Callable[[int, str], None] | None = None,
    error: type[WhetstoneError] = RunDirectoryError,
    problem: str = ": is damaged",
    may_be_incomplete: bool = True,
) -> Iterator[T]:
    """Parse each line of a JSON Lines file, and yield the results; empty lines are skipped.

    Args:
        path: File to read.
        parse: Function from a JSON object to the result; it raises an exception of `UNREADABLE` for another shape.
        on_damage: Callback that receives (line number, reason) of each damaged line, which is then left out; None: a
            damaged line is an error.
        error: Class of the error.
        problem: Text of the error message between line number and reason.
        may_be_incomplete: Whether an unreadable last line without a line break is ignored.

    Raises:
        WhetstoneError: If a line is damaged, or the file cannot be read; the message names file, line and reason.
    """
    try:
        file = open_regular_file(path)
    except OSError as failure:
        raise error(f"{path}: cannot be read: {failure.strerror}") from None
    with file:
        for line in iterate_lines(file):
            if not line.content.strip():
                continue
            try:
                if line.is_too_long:
                    raise ValueError(f"longer than {MAX_LINE_BYTES} bytes; the rest of the file is not read")
                row = parse(parse_object(line.content))
            except UNREADABLE as damage:
                if may_be_incomplete and not line.content.endswith(b"\n") and not line.is_too_long:
                    return
                if on_damage is None:
                    raise error(f"{path}:{line.number}{problem}: {describe_damage(damage)}") from None
                on_damage(line.number, describe_damage(damage))
            else:
                yield row


def parse_object(text: bytes | str) -> dict[str, Any]:
    """Parse one JSON object; untrusted input is allowed.

    Raises:
        ValueError: If the text is not valid JSON, see `parse_json`, or the value is not an object.
    """
    row = parse_json(text)
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is expected, got {type(row).__name__}")
    return row


def parse_json(text: bytes | str) -> Any:
    """Parse a JSON value; untrusted input is allowed.

    Raises:
        ValueError: If the text is not JSON or not UTF-8, is nested more than `MAX_DEPTH` levels, or has a non-finite
            number.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as refused:
        try:
            value = to_writable(json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_finite))
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
        except ValueError:
            raise ValueError(f"not JSON: {refused}") from None
    content = text if isinstance(text, bytes) else text.encode(errors="replace")
    if content.count(b"[") + content.count(b"{") > MAX_DEPTH and _is_too_deep(value):
        raise ValueError(_TOO_DEEP)
    return value


def to_writable(value: Any) -> Any:
    """Return a copy of JSON values that `orjson` can write.

    A lone surrogate becomes `�`, and an integer of more than 64 bits becomes text with its hexadecimal digits.
    """
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {to_writable(key): to_writable(one) for key, one in value.items()}
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return hex(value)
    return [to_writable(one) for one in value] if isinstance(value, list | tuple) else value


_TOO_DEEP = f"nested more than {MAX_DEPTH} levels"


def make_shape(**fields: Any) -> TypeAdapter[dict[str, Any]]:
    """Build a validator of JSON objects with these fields; other keys are dropped.

    make_shape(group=int, reason=NotRequired[str])
    """
    shape: Any = TypedDict("Row", fields)  # type: ignore[misc]
    adapter: Any = TypeAdapter(shape)
    return adapter  # type: ignore[no-any-return]


def read_event(row: Mapping[str, Any], shapes: Mapping[str, TypeAdapter[dict[str, Any]]]) -> dict[str, Any]:
    """Validate an object whose first key names its kind, and return its fields.

    Args:
        row: JSON object.
        shapes: Validator of each kind.

    Raises:
        ValueError: If the kind is unknown, or the object has another shape.
    """
    kind = next(iter(row), "")
    if kind not in shapes:
        raise ValueError(f'unknown kind of line "{kind[:40]}"; known kinds: {", ".join(shapes)}')
    return validate_shape(shapes[kind], row)


def cut_incomplete_line(path: Path) -> None:
    """Remove an incomplete last line from a file before more lines are appended.

    A killed writer leaves such a line.

    Raises:
        SaveError: If the file cannot be written.
    """
    content = path.read_bytes()
    complete = content.rfind(b"\n") + 1
    if complete < len(content):
        with convert_save_errors(path), open(path, "r+b") as file:
            file.truncate(complete)


def validate_shape(shape: TypeAdapter[T], value: Any) -> T:
    """Validate a JSON value, and return it in the types of the shape.

    Raises:
        ValueError: If the value has another shape; the message is one line with the path inside the value.
    """
    try:
        return shape.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None


def describe_damage(error: BaseException) -> str:
    """Return the reason why a line cannot be parsed, in at most 160 characters."""
    reason = str(error) if isinstance(error, ValueError) else f"another shape ({type(error).__name__}: {error})"
    return " ".join(reason.split())[:160]


def open_regular_file(path: Path) -> BinaryIO:
    """Open a regular file for reading bytes; a FIFO, socket or device could block forever.

    Raises:
        OSError: If the file cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return open(descriptor, "rb")


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not valid JSON")


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is out of range")
    return value
