"""Readers of files with rows: JSON lines, a JSON list, CSV, TSV, text, Parquet, and datasets of Hugging Face.

Every file becomes `Row` objects, whatever its format. A row that cannot be read becomes an `InvalidRow`, and reading
continues with the next row, so that all invalid rows of a file are reported at once.

Note:
    `str.splitlines` also splits at U+2028, NEL, form feed, vertical tab and the file separator, all of which occur in
    text. Lines here end with a line feed or carriage return only.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from whetstone.errors import DataError, RecipeError, TaskError, did_you_mean
from whetstone.tasks.tables import dataset_rows, parquet_rows

OnBadRow = Literal["stop", "skip"]
"""Treatment of invalid rows: `stop` raises one error that lists them; `skip` excludes and counts them."""

MAX_LINE_BYTES = 64 << 20
"""Maximum bytes of one line or field."""
MAX_LISTED = 10
"""Maximum number of invalid rows that an error lists."""
_FORMATS = ".jsonl, .json, .csv, .tsv, .txt, .parquet, or a folder with a dataset"
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_TO_UTF_8 = "convert the file to UTF-8, such as with `iconv -f cp1252 -t utf-8`"
_SPACE = re.compile(r"[ \t\n\r]*")
_NOT_UTF_8 = re.compile("[\udc80-\udcff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_ITEM = TypeVar("_ITEM")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a data file, whatever the format of the file."""

    where: str
    """Place of the row: `file:line`, or `file, row n`."""
    columns: Mapping[str, Any]
    """Values by column name."""
    number: int = 0
    """Line number in JSON lines, otherwise index of the row, from 1."""

    def error(self, message: str, at: str = "") -> DataError:
        """Return the error for a problem in the row; the caller raises it.

        Args:
            message: Description of the problem.
            at: Path inside the row, such as `messages[2].tool_calls[0].function.arguments`.
        """
        return DataError(f"{self.where}  {at}: {message}" if at else f"{self.where}  {message}")


@dataclass(frozen=True, slots=True)
class InvalidRow:
    """A row that a reader could not read, with the reason; reading continues after it."""

    where: str
    """Place of the row: `file:line`, or `file, row n`."""
    reason: str
    """Reason why the row is invalid."""

    def __str__(self) -> str:
        return f"{self.where}  {self.reason}"


def read_all(
    path: Path,
    parse: Callable[[Row], Iterable[_ITEM]],
    *,
    split: str = "train",
    on_bad_row: OnBadRow = "stop",
    suffix: str = "",
) -> tuple[list[_ITEM], int]:
    """Read and parse every row of a file.

    Args:
        path: The file or folder.
        parse: Returns the items of a row, or raises a DataError.
        split: Split of a dataset with several splits.
        on_bad_row: `stop` raises one error for all invalid rows; `skip` excludes and counts them.
        suffix: Format of the file, such as `.jsonl`; empty: the suffix of its name.

    Returns:
        The items, and the number of skipped rows.

    Raises:
        DataError: If the file cannot be read; or rows are invalid and `on_bad_row` is `stop`.
    """
    items: list[_ITEM] = []
    invalid: list[str] = []
    count = 0
    for row in read_rows(path, split=split, suffix=suffix):
        count += 1
        parsed = parse_row(row, parse)
        if isinstance(parsed, str):
            invalid.append(parsed)
        else:
            items.extend(parsed)
    if invalid and on_bad_row == "stop":
        raise DataError(describe_invalid(path, invalid, count))
    return items, len(invalid)


def parse_row(row: Row | InvalidRow, parse: Callable[[Row], Iterable[_ITEM]]) -> list[_ITEM] | str:
    """Return the items of a row, or the reason why the row is invalid.

    Args:
        row: Row of a reader.
        parse: Returns the items of a row, or raises a DataError.
    """
    if isinstance(row, InvalidRow):
        return str(row)
    try:
        return list(parse(row))
    except DataError as error:
        return str(error)
    except RecursionError:
        return str(row.error("nested too deeply"))


def describe_invalid(path: Path, invalid: Sequence[str], rows: int) -> str:
    """Return an error message with the number of invalid rows and the first of them.

    Args:
        path: The file.
        invalid: Reasons with the places of the rows.
        rows: Number of all rows.
    """
    if len(invalid) == 1:
        return f"{invalid[0]}; correct the row, or set `on_bad_row: skip`"
    listed = [reason.replace(str(path), path.name)[:150] for reason in invalid[:MAX_LISTED]]
    more = [f"and {len(invalid) - MAX_LISTED} more"] if len(invalid) > MAX_LISTED else []
    remedy = "correct them, or set `on_bad_row: skip`"
    return f"{path}: {len(invalid)} of {rows} rows are invalid; {remedy}: {'; '.join([*listed, *more])}"


def read_rows(path: Path, *, split: str = "train", suffix: str = "") -> Iterator[Row | InvalidRow]:
    """Read the rows of a file or of a dataset in a folder.

    Args:
        path: The file or folder.
        split: Split of a dataset with several splits.
        suffix: Format of the file, such as `.jsonl`; empty: the suffix of its name.

    Yields:
        A `Row`, or an `InvalidRow` for a row that cannot be read.

    Raises:
        DataError: If the file does not exist, has an unknown format, or cannot be read at all.
    """
    if not path.exists():
        siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"{path}: no such file{did_you_mean(path.name, siblings)}")
    suffix = suffix or path.suffix
    if path.is_dir() or suffix == ".parquet":
        return _read_tables(path, split)
    if not path.is_file():
        raise DataError(f"{path}: not a regular file; copy its content into a file")
    readers = {".jsonl": _read_lines, ".json": _read_list, ".txt": _read_texts}
    if suffix in _DELIMITERS:
        return _read_delimited(path, _DELIMITERS[suffix])
    if suffix not in readers:
        raise DataError(f"{path}: unknown format; supported are {_FORMATS}")
    return readers[suffix](path)


# ------------------------------------------------------------ JSON


def parse_row_object(line: bytes | str, *, what: str = "a row") -> dict[str, Any]:
    """Parse a JSON object of a file strictly.

    Args:
        line: The text of the object.
        what: Name of the object in error messages.

    Raises:
        ValueError: If the line is not a JSON object, contains a number that JSON does not have, a duplicate key, or
            half of a surrogate pair.
    """
    try:
        text = line if isinstance(line, str) else line.decode("utf-8-sig")
        return _check_object(_STRICT.decode(text), text, what=what)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is not UTF-8; {_TO_UTF_8}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None


def _check_object(row: Any, text: str, *, what: str = "a row") -> dict[str, Any]:
    """Return a decoded value that must be a JSON object with valid Unicode.

    Args:
        row: The decoded value.
        text: Text that contains the value.
        what: Name of the object in error messages.

    Raises:
        ValueError: If the value is not an object, or one of its texts is not valid Unicode.
    """
    if not isinstance(row, dict):
        raise ValueError(f"{what} must be a JSON object, got {type(row).__name__}")
    place = next(_invalid_texts(row), None) if _SURROGATE_ESCAPE.search(text) else None
    if place is not None:
        raise ValueError(f"`{place}` is not valid Unicode: it contains half of a surrogate pair")
    return row


def _invalid_texts(value: Any, place: str = "") -> Iterator[str]:
    """Yield the paths of texts that cannot be encoded as UTF-8."""
    if isinstance(value, str):
        if not value.isascii() and _SURROGATE.search(value):
            yield place
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _invalid_texts(key, f"{place} (a key)".lstrip())
            yield from _invalid_texts(item, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _invalid_texts(item, f"{place}[{index}]")


def _reject_constant(word: str) -> Any:
    """Refuse NaN and infinity, which JSON does not have."""
    raise ValueError(f"not JSON: {word} is not a number of JSON")


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; refuse it if a key occurs twice."""
    row = dict(pairs)
    if len(row) < len(pairs):
        seen: set[str] = set()
        duplicate = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f'not JSON: the key "{duplicate}" occurs twice')
    return row


def _parse_finite(text: str) -> float:
    """Parse a number; refuse it if it is out of range."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"not JSON: {text[:20]} is out of range")
    return value


_STRICT = json.JSONDecoder(
    parse_constant=_reject_constant, parse_float=_parse_finite, object_pairs_hook=_reject_duplicates
)
_LENIENT = json.JSONDecoder()


def _read_lines(path: Path) -> Iterator[Row | InvalidRow]:
    """Yield the rows of a file with one JSON object per line."""
    with _open_bytes(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            where = f"{path}:{number}"
            if len(line) > MAX_LINE_BYTES:
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE_BYTES)
                yield InvalidRow(where, f"longer than {MAX_LINE_BYTES} bytes")
            elif line.strip():
                try:
                    yield Row(where, parse_row_object(line), number)
                except ValueError as error:
                    is_torn = str(error).startswith("not JSON") and not line.endswith(b"\n")
                    yield InvalidRow(where, f"{error} (the last line; is the file cut off?)" if is_torn else str(error))


def _read_list(path: Path) -> Iterator[Row | InvalidRow]:
    """Read a JSON list of objects, or JSON lines in a file with the suffix `.json`."""
    with _open_bytes(path) as file:
        head = next((line for line in iter(lambda: file.readline(MAX_LINE_BYTES), b"") if line.strip()), b"")
        is_object = head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") and _is_object(head)
        if is_object and file.read(1 << 16).strip():
            yield from _read_lines(path)
            return
        file.seek(0)
        try:
            text = file.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: byte {error.start + 1} is not UTF-8; {_TO_UTF_8}") from None
    place = _skip_space(text, 0)
    if text[place : place + 1] != "[":
        kind = _kind_of_json(path, text)
        raise DataError(f"{path}: expected a list of objects, got {kind}")
    place, number = _skip_space(text, place + 1), 0
    while text[place : place + 1] != "]":
        number += 1
        where = f"{path}, row {number}"
        try:
            _, end = _LENIENT.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            yield InvalidRow(where, f"not JSON: {reason}; no row after it can be read")
            return
        try:
            yield Row(where, _check_object(_STRICT.raw_decode(text, place)[0], text[place:end]), number)
        except ValueError as error:
            yield InvalidRow(where, str(error))
        place = _skip_space(text, end)
        if text[place : place + 1] == ",":
            place = _skip_space(text, place + 1)
        elif text[place : place + 1] != "]":
            yield InvalidRow(where, f"not JSON: `,` or `]` is expected after it, at character {place + 1}")
            return
    if _skip_space(text, place + 1) < len(text):
        yield InvalidRow(f"{path}, row {number}", "not JSON: text after the end of the list")


def _is_object(line: bytes) -> bool:
    """Return whether a line is a complete JSON object."""
    try:
        return isinstance(_LENIENT.decode(line.decode("utf-8-sig", errors="replace")), dict)
    except (ValueError, RecursionError):
        return False


def _kind_of_json(path: Path, text: str) -> str:
    """Return the type of a JSON value, for a message.

    Raises:
        DataError: If the text is not JSON.
    """
    try:
        return type(_LENIENT.decode(text)).__name__
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DataError(f"{path}: not JSON: {reason}") from None


def _skip_space(text: str, place: int) -> int:
    """Return the index of the next character that is not white space."""
    match = _SPACE.match(text, place)
    return match.end() if match else place


# ------------------------------------------------------------ CSV, TSV, text


class _Lines:
    """Iterator over the lines of a text file for a CSV parser, with put-back.

    The lines of a record that ends with the file can be put back, because an unclosed quote takes all lines after it.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._source, self._waiting = iter(lines), list[str]()
        self.number = 0
        self.record: list[str] = []
        """Lines that were read since the last record."""

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._waiting.pop() if self._waiting else next(self._source)
        self.number += 1
        self.record.append(line)
        return line

    def put_back(self) -> None:
        """Put back all lines of the record but the first."""
        self._waiting.extend(reversed(self.record[1:]))
        self.number -= len(self.record) - 1


_MAX_PUT_BACK = 20
"""Maximum number of records per file whose lines are put back, so that the time is linear in the size of the file."""


def _read_delimited(path: Path, delimiter: str) -> Iterator[Row | InvalidRow]:
    """Read the rows of a CSV or TSV file with a header."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    _open_bytes(path).close()
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = _Lines(file)
        number, put_back = 0, 0
        header: list[str] | None = None
        while True:
            lines.record = []
            try:
                fields = next(csv.reader(lines, delimiter=delimiter, strict=True))
                reason = ""
            except StopIteration:
                return
            except csv.Error as error:
                fields, reason = lines.record, f"not {path.suffix[1:].upper() or 'CSV'}: {error}"
            if not fields and not reason:
                continue
            first = lines.number - len(lines.record) + 1
            if reason and "unexpected end of data" in reason:
                reason = f"the quote that opens in line {first} is not closed"
                if len(lines.record) > 1 and put_back < _MAX_PUT_BACK:
                    put_back += 1
                    lines.put_back()
            elif reason and len(lines.record) > 1:
                reason += f" (lines {first} to {lines.number})"
            if header is None:
                header = _check_header(path, fields, reason)
                continue
            number += 1
            where = f"{path}, row {number}"
            if not reason:
                reason = _check_fields(fields, header)
            if reason:
                yield InvalidRow(where, f"{reason} (line {first})" if "line" not in reason else reason)
            else:
                yield Row(where, dict(zip(header, fields, strict=True)), number)


def _check_header(path: Path, fields: list[str], reason: str) -> list[str]:
    """Return the column names of a table.

    Raises:
        DataError: If the header is invalid, has a duplicate column or uses another delimiter.
    """
    other = next((each for each in ";\t|" if len(fields) == 1 and each in fields[0]), None)
    if other is not None and not reason:
        reason = f"one column, with {other!r} in its name; save the file with commas (.csv) or tabs (.tsv)"
    duplicate = next((name for k, name in enumerate(fields) if name in fields[:k]), None)
    if duplicate is not None and not reason:
        reason = f'the column "{duplicate}" occurs twice'
    if any(map(_NOT_UTF_8.search, fields)):
        reason = f"not UTF-8; {_TO_UTF_8}"
    if reason:
        raise DataError(f"{path}, header: {reason}")
    return fields


def _check_fields(fields: Sequence[str], header: Sequence[str]) -> str:
    """Return the problem of the fields of a row; empty if they are valid."""
    if len(fields) > len(header):
        return f"{len(fields)} fields, the header has {len(header)}; a field that contains the delimiter needs quotes"
    if len(fields) < len(header):
        return f"{len(fields)} fields, the header has {len(header)}; `{header[len(fields)]}` is missing"
    for name, field in zip(header, fields, strict=True):
        if not field.isascii() and (match := _NOT_UTF_8.search(field)):
            return f"`{name}` is not UTF-8 (byte 0x{ord(match[0]) - 0xDC00:02X}); {_TO_UTF_8}"
    return ""


def _read_texts(path: Path) -> Iterator[Row | InvalidRow]:
    """Read texts that are separated by empty lines, as rows with the column `text`."""
    with _open_bytes(path) as file:
        content = file.read().decode("utf-8-sig", errors="surrogateescape")
    texts = filter(str.strip, content.replace("\r\n", "\n").split("\n\n"))
    for number, text in enumerate(texts, start=1):
        where = f"{path}, text {number}"
        if _NOT_UTF_8.search(text):
            yield InvalidRow(where, f"not UTF-8; {_TO_UTF_8}")
        else:
            yield Row(where, {"text": text.strip("\n")}, number)


def _open_bytes(path: Path) -> Any:
    """Open a file whose encoding can be UTF-8.

    Raises:
        DataError: If the file cannot be opened, or is UTF-16.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    if file.read(2) in _UTF_16:
        file.close()
        raise DataError(
            f"{path}: the encoding is UTF-16; convert the file to UTF-8, such as with `iconv -f utf-16 -t utf-8`"
        )
    file.seek(0)
    return file


# ------------------------------------------------------------ tables


def _read_tables(path: Path, split: str) -> Iterator[Row | InvalidRow]:
    """Read the rows of Parquet files, or of a dataset in a folder.

    Raises:
        DataError: If the files cannot be read, or there is no such split.
    """
    has_parquet = path.suffix == ".parquet" or any(path.rglob("*.parquet"))
    is_saved = (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()
    try:
        splits = parquet_rows(path, split, "") if has_parquet and not is_saved else dataset_rows(path, split)
    except (TaskError, RecipeError) as error:
        raise DataError(str(error)) from None
    if split not in splits:
        raise DataError(f"{path}: no split named {split}{did_you_mean(split, splits)}")
    for number, columns in enumerate(_read_arrow(splits[split]), start=1):
        columns = {name: None if _is_missing(value) else remove_padding(value) for name, value in columns.items()}
        yield Row(f"{path}:{split}, row {number}", columns, number)


def _read_arrow(table: Any) -> Iterator[Mapping[str, Any]]:
    """Yield rows as Arrow stores them.

    `datasets` decodes JSON, whose nulls would look like those of structs.
    """
    if isinstance(table, list):
        yield from table
        return
    for batch in table.with_format("arrow").iter(batch_size=1000):
        yield from batch.to_pylist()


def remove_padding(value: Any) -> Any:
    """Return a value of an Arrow table without the nulls of its structs.

    Arrow gives every struct of a column the fields of all rows, and fills missing ones with null; tables of pandas
    contain NaN instead. A null in a list, in a map or in JSON text was written, and is kept.
    """
    if isinstance(value, Mapping):
        return {key: remove_padding(field) for key, field in value.items() if not _is_missing(field)}
    if not isinstance(value, list):
        return value
    if value and all(isinstance(each, tuple) for each in value):  # a map
        return {key: remove_padding(item) for key, item in value}
    return [remove_padding(each) for each in value]


def _is_missing(value: Any) -> bool:
    """Return whether a value of a table is missing: None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))
