"""Tasks from a file as a benchmark is published, or as somebody has it: a format, or columns by what they are.

tasks: {source: file, path: HumanEval.jsonl, format: humaneval}
tasks: {source: file, path: questions.csv, columns: {prompt: question, answer: solution, tags: [topic]}}
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.tasks.formats import format_of
from whetstone.tasks.jsonl import OnBadTask, read_tasks
from whetstone.tasks.listed import ListedTasks
from whetstone.tasks.splits import check_apart, split_unless_all
from whetstone.trajectory import Task


class File(ListedTasks):
    """Rows of JSON lines, of one JSON list (`.json`) or of a table (`.csv`), each a task.

    Args:
        path: The file.
        format: How its rows are read; `docs/formats.md` has the columns of each.
        columns: Instead of a format, columns by what they are: `prompt`, and what there is of `answer`, `id`, `tags` (a
            list) and `private` (a list).
        held_out: Another file of the same kind, which is held out; empty: a share of the one.
        held_out_fraction: Fraction of the tasks that is held out; 1 keeps all of them, as benchmarks do, and trains on
            the same.
        seed: The order in which training tasks come.
        on_bad_task: `error`, or `skip` to leave bad rows out and count them.

    Raises:
        TaskError: A file is missing, empty or has a bad row; the message names it.
        OptionError: There is no such format, or both or neither of `format` and `columns` are given.
    """

    def __init__(
        self,
        *,
        path: str,
        format: str = "",
        columns: dict[str, Any] | None = None,
        held_out: str = "",
        held_out_fraction: float = 0.1,
        seed: int = 0,
        on_bad_task: OnBadTask = "error",
    ) -> None:
        try:
            read = format_of(format, columns or {})
        except ValueError as error:
            raise OptionError("columns" if columns else "format", str(error)) from None
        tasks, self.skipped = _tasks(Path(path), read, on_bad_task)
        if held_out:
            held_out_tasks, skipped = _tasks(Path(held_out), read, on_bad_task)
            check_apart(tasks, held_out_tasks, where=path)
            training, self.skipped = tasks, self.skipped + skipped
        else:
            training, held_out_tasks = split_unless_all(tasks, held_out_fraction, where=path)
        super().__init__(training, held_out_tasks, seed=seed)


def _tasks(path: Path, read: Any, on_bad_task: OnBadTask) -> tuple[list[Task], int]:
    if path.suffix not in (".json", ".csv") or not path.is_file():
        return read_tasks(path, read, on_bad_task=on_bad_task)
    tasks, skipped = [], 0
    for number, row in enumerate(_rows(path), start=1):
        try:
            tasks.append(read(row, number))
        except (KeyError, ValueError, TypeError) as error:
            if on_bad_task == "error":
                said = f"the column {error} is missing" if isinstance(error, KeyError) else str(error)
                raise TaskError(f"{path}, row {number}: {said}; `on_bad_task: skip` leaves such rows out") from None
            skipped += 1
    if not tasks:
        raise TaskError(f"{path}: no tasks in it" + (f" ({skipped} bad rows skipped)" if skipped else ""))
    return tasks, skipped


def _rows(path: Path) -> list[Mapping[str, Any]]:
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".csv":
        return list(csv.DictReader(text.splitlines(keepends=True)))
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise TaskError(f"{path}: not JSON: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TaskError(f"{path}: a list of objects is expected")
    return rows
