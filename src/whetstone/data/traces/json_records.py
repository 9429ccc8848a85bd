"""Objects of a JSON file in bounded memory: JSON lines, one list, or one object.

A list is decoded element by element, and one broken element does not end the file unless the rest cannot be separated
from it. A single object, such as one trace over many lines, is read as a whole.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from whetstone.errors import DataError
from whetstone.tasks.readers import InvalidRow, Row, parse_row_object, read_rows

MAX_OBJECT_BYTES = 256 << 20
"""Maximum size of a file with a single object, and of one element of a list."""
_CHUNK = 1 << 20
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")
_NOT_UTF_8 = re.compile("[\udc80-\udcff]")


def read_json_records(path: Path) -> Iterator[Row | InvalidRow]:
    """Yield the objects of a file, with the place of each.

    Raises:
        DataError: The file does not exist, is UTF-16, or is not JSON at all.
    """
    first = _first_bytes(path)
    if first.startswith(b"["):
        with open(path, "rb") as file:
            yield from _read_elements(path, file)
    elif first.startswith(b"{") and not _is_lines(path):
        yield _read_object(path)
    elif first.startswith(b"{") or not first:
        yield from read_rows(path, suffix=".jsonl")
    else:
        raise DataError(f"{path}: not JSON: a file of records starts with {{ or [, this one with {first[:20]!r}")


def _first_bytes(path: Path) -> bytes:
    read_rows(path, suffix=".jsonl")  # checks that the file exists
    try:
        with open(path, "rb") as file:
            head = file.read(_CHUNK)
            while head and not head.strip():
                head = file.read(_CHUNK)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path}: UTF-16; convert the file to UTF-8, such as with `iconv -f utf-16 -t utf-8`")
    return head.removeprefix(b"\xef\xbb\xbf").strip()[:64]


def _is_lines(path: Path) -> bool:
    """Return whether the first line that is not empty is an object, or the second one starts with one."""
    with open(path, "rb") as file:
        lines = (line for line in iter(lambda: file.readline(MAX_OBJECT_BYTES), b"") if line.strip())
        first, second = next(lines, b""), next(lines, b"")
    try:
        parse_row_object(first)
    except ValueError:
        return second.lstrip().startswith(b"{")
    return True


def _read_object(path: Path) -> Row | InvalidRow:
    if path.stat().st_size > MAX_OBJECT_BYTES:
        raise DataError(f"{path}: one object of more than {MAX_OBJECT_BYTES >> 20} MiB; export JSON lines")
    try:
        return Row(str(path), parse_row_object(path.read_bytes(), what="the file"), 1)
    except ValueError as error:
        return InvalidRow(str(path), str(error))


def _read_elements(path: Path, file: BinaryIO) -> Iterator[Row | InvalidRow]:
    """Yield the elements of a list, reading the file in chunks."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="surrogateescape")
    buffer = decoder.decode(file.read(_CHUNK))
    is_end = False
    place = _skip_space(buffer, 0) + 1  # after the bracket
    indent = re.match(r"\s*\n([ \t]*)", buffer[place : place + 1000])
    boundary = re.compile(rf",[ \t\r]*\n{re.escape(indent[1])}(?=\S)") if indent is not None else None
    number = 0
    while True:
        place = _skip_space(buffer, place)
        start = place
        end = _end_of_element(buffer, start, boundary)
        if end is None and not is_end:  # read at least as much again, so that the time is linear
            chunk = file.read(max(_CHUNK, len(buffer) - start))
            is_end = not chunk
            buffer = buffer[start:] + decoder.decode(chunk, final=is_end)
            place = 0
            if len(buffer) <= MAX_OBJECT_BYTES:
                continue
        if end is None:
            end = _next_boundary(buffer, start, boundary)
        where = f"{path}, row {number + 1}"
        if buffer[start : start + 1] == "]":
            if _skip_space(buffer, start + 1) < len(buffer) or file.read(_CHUNK).strip():
                yield InvalidRow(where, "text after the end of the list")
            return
        number += 1
        if end is None:
            reason = "the file is cut off" if is_end else f"longer than {MAX_OBJECT_BYTES >> 20} MiB"
            yield InvalidRow(where, f"not JSON: {reason}; no row after it can be read")
            return
        text = buffer[start:end]
        try:
            if _NOT_UTF_8.search(text):
                raise ValueError("not UTF-8; convert the file to UTF-8, such as with `iconv -f cp1252 -t utf-8`")
            yield Row(where, parse_row_object(text), number)
        except ValueError as error:
            yield InvalidRow(where, str(error))
        place = _skip_space(buffer, end)
        place += buffer[place : place + 1] == ","
        if place > _CHUNK:
            buffer, place = buffer[place:], 0


def _end_of_element(text: str, start: int, boundary: re.Pattern[str] | None) -> int | None:
    """Return the position after an element, before the comma or bracket that follows; None if the text ends before it.

    Args:
        text: A part of the file.
        start: Position of the element.
        boundary: Matches the end of an element of a list with one element per line or more; None for other lists. An
            element that is not JSON ends there.
    """
    if text[start : start + 1] == "]":
        return start + 1
    try:
        _, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        return _next_boundary(text, start, boundary)
    except json.JSONDecodeError as error:
        is_incomplete = error.pos >= len(text) - 16 or "Unterminated string" in str(error)
        return None if is_incomplete else _next_boundary(text, start, boundary)
    return None if _skip_space(text, end) >= len(text) else end


def _next_boundary(text: str, start: int, boundary: re.Pattern[str] | None) -> int | None:
    match = boundary.search(text, start) if boundary is not None else None
    return None if match is None else match.start()


def _skip_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place
