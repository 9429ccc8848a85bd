"""Task sources of tables: Parquet files, and datasets of Hugging Face in a folder.

    source: parquet        path: FILE or FOLDER
    source: huggingface    path: FOLDER, as `save_to_disk` wrote it, or as a repository of the hub looks

The recipe names the columns; other columns are not part of the task.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whetstone.errors import TaskError, did_you_mean
from whetstone.tasks.finite_source import ListedTasks
from whetstone.tasks.readers import OnBadRow, Row, describe_invalid, parse_row
from whetstone.tasks.splits import check_disjoint, split_tasks
from whetstone.tasks.tables import dataset_rows, parquet_rows
from whetstone.trajectory import Task


class _Rows(ListedTasks, ABC):
    """Base class of task sources of tables; a subclass reads the rows of each split.

    The arguments are those of `Parquet`.
    """

    def __init__(
        self,
        *,
        path: str,
        seed: int = 0,
        prompt: str = "prompt",
        answer: str = "answer",
        id: str = "",
        tags: list[str] | None = None,
        private: list[str] | None = None,
        training: str = "train",
        held_out: str = "",
        held_out_fraction: float = 0.1,
        on_bad_row: OnBadRow = "stop",
    ) -> None:
        self.columns = _Columns(prompt, answer, id, tuple(tags or ()), tuple(private or ()))
        rows = self.read(Path(path), training, held_out)
        for name in filter(None, (training, held_out)):
            if name not in rows:
                raise TaskError(f"{path}: no split named {name}{did_you_mean(name, rows)}")
        self.skipped = 0
        trained = self._tasks(rows[training], path, training, on_bad_row)
        if held_out:
            held_out_tasks = self._tasks(rows[held_out], path, held_out, on_bad_row)
            check_disjoint(trained, held_out_tasks, where=path)
        else:
            trained, held_out_tasks = split_tasks(trained, held_out_fraction, where=path)
        if not trained or not held_out_tasks:
            raise TaskError(f"{path}: the training or the held-out split has no tasks")
        super().__init__(trained, held_out_tasks, seed=seed)

    def _tasks(self, rows: Iterable[Mapping[str, Any]], path: str, name: str, on_bad_row: OnBadRow) -> list[Task]:
        """Return the tasks of rows and count invalid rows.

        Raises:
            TaskError: If rows are invalid and `on_bad_row` is `stop`.
        """
        tasks: list[Task] = []
        invalid: list[str] = []
        number = 0
        for number, columns in enumerate(rows, start=1):
            row = Row(f"{path}:{name}, row {number}", columns, number)
            parsed = parse_row(row, lambda row: [self.columns.parse_row(row, name)])
            if isinstance(parsed, str):
                invalid.append(parsed)
            else:
                tasks += parsed
        if invalid and on_bad_row == "stop":
            raise TaskError(describe_invalid(Path(path), invalid, number))
        self.skipped += len(invalid)
        return tasks

    @abstractmethod
    def read(self, path: Path, training: str, held_out: str) -> Mapping[str, Iterable[Mapping[str, Any]]]:
        """Return the rows of each split, by the name of the split.

        Args:
            path: The file or folder.
            training: Name of the training split.
            held_out: Name of the held-out split; empty: none.
        """


class Parquet(_Rows):
    """Task source of a Parquet file, or of a folder of Parquet files.

    The files of a folder are `train*.parquet` and `test*.parquet`, or have any names as one split.

    Args:
        path: The file or folder.
        seed: Determines the order of training tasks.
        prompt: Column with the prompt.
        answer: Column with the answer; empty: none.
        id: Column with ids; empty: the numbers of the rows.
        tags: Columns by which results are broken down.
        private: Other columns for the verifier.
        training: Split for training.
        held_out: Split that is held out; empty: a fraction of the training split.
        held_out_fraction: Fraction of the tasks that is held out.
        on_bad_row: `stop` reports all invalid rows; `skip` excludes and counts them.

    Raises:
        TaskError: If there is no such file, split or column, or the splits overlap.
        RecipeError: If `pyarrow` is not installed.
    """

    def read(self, path: Path, training: str, held_out: str) -> Mapping[str, Iterable[Mapping[str, Any]]]:
        """Return the rows of each split of the Parquet files; see `parquet_rows`."""
        return parquet_rows(path, training, held_out)


class HuggingFace(_Rows):
    """Task source of a Hugging Face dataset in a folder; nothing is downloaded.

    The folder is as `save_to_disk` writes it or in the layout of the hub.

    Args:
        path: The folder.
        seed: Determines the order of training tasks.
        prompt: Column with the prompt.
        answer: Column with the answer; empty: none.
        id: Column with ids; empty: the numbers of the rows.
        tags: Columns by which results are broken down.
        private: Other columns for the verifier.
        training: Split for training.
        held_out: Split that is held out; empty: a fraction of the training split.
        held_out_fraction: Fraction of the tasks that is held out.
        on_bad_row: `stop` reports all invalid rows; `skip` excludes and counts them.

    Raises:
        TaskError: If there is no such folder, split or column, or the splits overlap.
        RecipeError: If `datasets` is not installed.
    """

    def read(self, path: Path, training: str, held_out: str) -> Mapping[str, Iterable[Mapping[str, Any]]]:
        """Return the rows of each split of the dataset; see `dataset_rows`."""
        return dataset_rows(path, training)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Names of the table columns from which a task's fields are read."""

    prompt: str
    """Column with the prompt."""
    answer: str
    """Column with the answer; empty: none."""
    id: str
    """Column with the id; empty: the number of the row."""
    tags: tuple[str, ...]
    """Columns of the task's tags."""
    private: tuple[str, ...]
    """Columns of the task's private data."""

    def parse_row(self, row: Row, split: str) -> Task:
        """Return the task of a row.

        Args:
            row: Row of the table.
            split: Name of the split, part of ids without an id column.

        Raises:
            DataError: If a column is missing, or has no value.
        """
        columns = row.columns
        for column in (*filter(None, (self.prompt, self.answer, self.id)), *self.tags, *self.private):
            if column not in columns:
                key = next((k for k in ("prompt", "answer", "id") if getattr(self, k) == column), "")
                remedy = f"; name it: tasks.{key}=COLUMN" if key else ""
                remedy += ', or set tasks.answer: "" for tasks without an answer' if key == "answer" else ""
                raise row.error(f"no column named {column}{did_you_mean(column, columns)}{remedy}")
        prompt: Any = columns[self.prompt]
        if not isinstance(prompt, str | list | tuple):
            raise row.error(f"{self.prompt} must be a text or a list of messages, got {type(prompt).__name__}")
        private = {column: columns[column] for column in self.private}
        if self.answer:
            if columns[self.answer] is None:
                raise row.error("has no value", at=self.answer)
            private["answer"] = columns[self.answer]
        # values that JSON cannot hold (dates, bytes) become texts, so that a trajectory can be written
        private = json.loads(json.dumps(private, default=str))
        own = str(columns[self.id]) if self.id else f"{split}/{row.number}"
        try:
            opening: Any = prompt
            return Task(own, opening, private, {tag: str(columns[tag]) for tag in self.tags})
        except ValueError as error:
            raise row.error(str(error), at=self.prompt) from None
