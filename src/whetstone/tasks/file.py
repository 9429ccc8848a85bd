"""Task source of a file in the format of a published benchmark, or with named columns.

tasks: {source: file, path: HumanEval.jsonl, format: humaneval}
tasks: {source: file, path: questions.csv, columns: {prompt: question, answer: solution, tags: [topic]}}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whetstone.plugins import OptionError
from whetstone.tasks.finite_source import ListedTasks
from whetstone.tasks.formats import row_parser
from whetstone.tasks.jsonl import read_tasks
from whetstone.tasks.readers import OnBadRow
from whetstone.tasks.splits import check_disjoint, split_unless_all


class File(ListedTasks):
    """Task source of a file, one task per row.

    The file has JSON lines, a JSON list (`.json`), a table with a header (`.csv`, `.tsv`) or Parquet.

    Args:
        path: The file.
        format: Name of a benchmark's format; `docs/reference/formats.md` has the columns of each.
        columns: Instead of a format, column names by role: `prompt`, and optional `answer`, `id`, `tags` (a list) and
            `private` (a list).
        held_out: Another file of the same kind, which is held out; empty: a fraction of `path`.
        held_out_fraction: Fraction of the tasks that is held out; 1 keeps all of them, as benchmarks do, and trains on
            the same.
        seed: Determines the order of training tasks.
        on_bad_row: `stop` reports all invalid rows; `skip` excludes and counts them.

    Raises:
        TaskError: If a file is missing, empty or has an invalid row; the message names it.
        OptionError: If there is no such format, or both or neither of `format` and `columns` are given.
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
        on_bad_row: OnBadRow = "stop",
    ) -> None:
        try:
            read = row_parser(format, columns or {})
        except ValueError as error:
            raise OptionError("columns" if columns else "format", str(error)) from None
        tasks, self.skipped = read_tasks(Path(path), read, on_bad_row=on_bad_row, suffix=task_suffix(Path(path)))
        if held_out:
            suffix = task_suffix(Path(held_out))
            held_out_tasks, skipped = read_tasks(Path(held_out), read, on_bad_row=on_bad_row, suffix=suffix)
            check_disjoint(tasks, held_out_tasks, where=path)
            training, self.skipped = tasks, self.skipped + skipped
        else:
            training, held_out_tasks = split_unless_all(tasks, held_out_fraction, where=path)
        super().__init__(training, held_out_tasks, seed=seed)


def task_suffix(path: Path) -> str:
    """Return the format of a task file as a suffix.

    A name without a known suffix means JSON lines.
    """
    return path.suffix if path.suffix in (".json", ".csv", ".tsv", ".parquet") else ".jsonl"
