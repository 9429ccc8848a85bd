"""Rows of data files, and the text of a row."""

from __future__ import annotations

from pathlib import Path

from whetstone.tasks.readers import InvalidRow, OnBadRow, Row, parse_row, read_all, read_rows

__all__ = ["InvalidRow", "OnBadRow", "Row", "get_text", "load_rows", "parse_row", "read_all", "read_rows"]


def load_rows(path: Path, *, split: str = "train") -> list[Row]:
    """Return the rows of a file or of a dataset in a folder.

    Args:
        path: The file or folder.
        split: Split of a dataset with several splits.

    Raises:
        DataError: The file cannot be read, or rows are invalid; the message lists them.
    """
    rows, _ = read_all(path, lambda row: [row], split=split)
    return rows


def get_text(row: Row) -> str:
    """Return the text of a row.

    Raises:
        DataError: The row has no text.
    """
    text = row.columns.get("text")
    if not isinstance(text, str):
        raise row.error('"text" is missing' if text is None else f'"text" is {type(text).__name__}, not a text')
    return text
