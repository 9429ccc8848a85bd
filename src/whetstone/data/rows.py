"""How is a file of rows read, whatever its kind? Row by row, each with the place a mistake in it is told by."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whetstone.errors import DataError, RecipeError, TaskError, did_you_mean
from whetstone.tasks.jsonl import json_row
from whetstone.tasks.rows import dataset_rows, parquet_rows

_LONGEST_LINE = 64 << 20
_KINDS = ".jsonl, .json, .txt, .parquet, or a folder with a dataset"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file."""

    where: str
    """`file:line`, or `file, row n`."""
    columns: Mapping[str, Any]

    def error(self, message: str) -> DataError:
        """A mistake in it, told with its place."""
        return DataError(f"{self.where}  {message}")


def remove_padding(value: Any) -> Any:
    """Return a value of an Arrow table without the nulls of its structs.

    Arrow gives every struct of a column the fields of all rows, and fills missing ones with null. A null in a list, in
    a map or in JSON text was written, and is kept.
    """
    if isinstance(value, Mapping):
        return {key: remove_padding(field) for key, field in value.items() if field is not None}
    if not isinstance(value, list):
        return value
    if value and all(isinstance(each, tuple) for each in value):  # a map
        return {key: remove_padding(item) for key, item in value}
    return [remove_padding(each) for each in value]


def text_of(row: Row) -> str:
    """The text of a row.

    Raises:
        DataError: It has none.
    """
    text = row.columns.get("text")
    if not isinstance(text, str):
        raise row.error('"text" is missing' if text is None else f'"text" is {type(text).__name__}, not a text')
    return text


def rows_of(path: Path, *, split: str = "train") -> Iterator[Row]:
    """The rows of a file of JSON lines, of one JSON list, of text, of Parquet, or of a dataset in a folder.

    Args:
        split: Of a dataset that has several.

    Raises:
        DataError: There is no such file, it cannot be read, or a row is none; the message says which.
    """
    if not path.exists():
        beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"{path}: no such file{did_you_mean(path.name, beside)}")
    if path.suffix == ".jsonl":
        return _lines(path)
    if path.suffix == ".json":
        return _list(path)
    if path.suffix == ".txt":
        return _texts(path)
    if path.is_dir() or path.suffix == ".parquet":
        return _tables(path, split)
    raise DataError(f"{path}: data is read from {_KINDS}")


def _lines(path: Path) -> Iterator[Row]:
    with open(path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), b""), start=1):
            where = f"{path}:{number}"
            if len(line) > _LONGEST_LINE:
                raise DataError(f"{where}  longer than {_LONGEST_LINE} bytes")
            if not line.strip():
                continue
            torn = "" if line.endswith(b"\n") else " (the last line; is the file cut off?)"
            try:
                yield Row(where, json_row(_decoded(line, where), what="a row"))
            except ValueError as error:
                raise DataError(f"{where}  {error}{torn}") from None


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}  byte {error.start + 1} is not UTF-8; write the file in one encoding (`iconv -t utf-8`)"
        ) from None


def _list(path: Path) -> Iterator[Row]:
    try:
        read = json.loads(_decoded(path.read_bytes(), str(path)))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    if not isinstance(read, list):
        raise DataError(f"{path}: a list of objects is expected, got {type(read).__name__}")
    for number, columns in enumerate(read, start=1):
        if not isinstance(columns, Mapping):
            raise DataError(f"{path}, row {number}  an object is expected, got {type(columns).__name__}")
        yield Row(f"{path}, row {number}", columns)


def _texts(path: Path) -> Iterator[Row]:
    texts = _decoded(path.read_bytes(), str(path)).replace("\r\n", "\n").split("\n\n")
    for number, text in enumerate(filter(str.strip, texts), start=1):
        yield Row(f"{path}, text {number}", {"text": text.strip("\n")})


def _tables(path: Path, split: str) -> Iterator[Row]:
    parquet = path.suffix == ".parquet" or any(path.rglob("*.parquet"))
    written = (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()
    try:
        found = parquet_rows(path, split, "") if parquet and not written else dataset_rows(path, split)
    except (TaskError, RecipeError) as error:
        raise DataError(str(error)) from None
    if split not in found:
        raise DataError(f"{path}: no split {split}{did_you_mean(split, found)}")
    for number, columns in enumerate(_read_arrow(found[split]), start=1):
        yield Row(f"{path}:{split}, row {number}", {name: remove_padding(value) for name, value in columns.items()})


def _read_arrow(table: Any) -> Iterator[Mapping[str, Any]]:
    """Read rows as Arrow stores them: `datasets` decodes JSON, whose nulls would look like those of structs."""
    if isinstance(table, list):
        yield from table
        return
    for batch in table.with_format("arrow").iter(batch_size=1000):
        yield from batch.to_pylist()
