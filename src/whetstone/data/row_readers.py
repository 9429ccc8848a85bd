"""Reads rows of data files (JSON lines, JSON, CSV, Parquet, datasets in a folder), and the text of a row."""

from __future__ import annotations

from pathlib import Path

from whetstone.tasks.readers import InvalidRow, OnBadRow, Row, parse_row, read_all, read_rows

__all__ = ["InvalidRow", "OnBadRow", "Row", "get_text", "load_rows", "parse_row", "read_all", "read_rows"]


def load_rows(path: Path, *, split: str = "train") -> list[Row]:
    """Load all rows of a file, or of a dataset in a folder.

    Args:
        path: The file or folder.
        split: Split of a dataset with several splits.

    Raises:
        DataError: The file cannot be read, or rows are invalid; the message lists them.
    """
    rows, _ = read_all(path, lambda row: [row], split=split)
    return rows


def get_text(row: Row) -> str:
    """Return the column `text` of a row, as pretraining reads it.

    Raises:
        DataError: The column is missing or not a text.
    """
    text = row.columns.get("text")
    if not isinstance(text, str):
        problem = 'no column "text"' if text is None else f"text: a text is expected, got {type(text).__name__}"
        raise row.error(problem)
    return text
