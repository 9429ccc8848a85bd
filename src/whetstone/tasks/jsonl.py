"""Task source of JSON lines with a prompt and an answer per line, and the reader of task files."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from whetstone.errors import DataError, TaskError, did_you_mean
from whetstone.tasks.finite_source import ListedTasks
from whetstone.tasks.readers import OnBadRow, Row, read_all
from whetstone.tasks.splits import split_tasks
from whetstone.trajectory import Task

Parse = Callable[[Mapping[str, Any], int], Task]
"""Parser of a row: (the columns of a row, its number) → its task; raises a KeyError, ValueError or TypeError if the row
is invalid."""


def read_tasks(
    path: Path, parse: Parse, *, on_bad_row: OnBadRow = "stop", suffix: str = ".jsonl", split: str = "train"
) -> tuple[list[Task], int]:
    """Read the tasks of a file.

    Args:
        path: The file or folder.
        parse: Parser of a row.
        on_bad_row: `stop` raises one error for all invalid rows; `skip` excludes and counts them.
        suffix: Format of the file, whatever its name.
        split: Split of a dataset with several splits.

    Returns:
        The tasks, and the number of skipped rows.

    Raises:
        TaskError: If the file does not exist or has no tasks, or rows are invalid and `on_bad_row` is `stop`.
    """
    if not path.exists():
        siblings = [p.name for p in path.parent.glob(f"*{path.suffix}")] if path.parent.is_dir() else []
        raise TaskError(f"{path}: no such task file (tasks.path){did_you_mean(path.name, siblings)}")
    try:
        tasks, skipped = read_all(
            path, lambda row: [_parse_row(row, parse)], split=split, on_bad_row=on_bad_row, suffix=suffix
        )
    except DataError as error:
        if suffix == ".jsonl" and path.suffix.lower() in (".csv", ".tsv", ".parquet"):
            raise TaskError(f"{path}: a {path.suffix} file is not JSON Lines; read it with `source: file`") from None
        raise TaskError(str(error)) from None
    if not tasks:
        rows = f" ({skipped} bad rows skipped)" if skipped else ""
        raise TaskError(f'{path}: the file has no tasks{rows}; write one per line: {{"prompt": "…", "answer": "…"}}')
    return tasks, skipped


def _parse_row(row: Row, parse: Parse) -> Task:
    """Return the task of a row.

    Raises:
        DataError: If the row is invalid, with the place of the row.
    """
    try:
        return parse(row.columns, row.number)
    except KeyError as error:
        names = [name for name in row.columns if isinstance(name, str)]
        near = did_you_mean(str(error.args[0]), names)
        raise row.error(f"the key {error} is missing{near}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise row.error(str(error)) from None


class Jsonl(ListedTasks):
    """Task source of JSON lines: one `{"prompt": …, "answer": …}` per line.

    A line can also have `id` and `tags`. Every other key is for the verifier: it is in `task.private` under its name,
    like `answer` and the keys of a `private` object. A line needs one of them; `"private": {}` is for tasks whose
    reward reads only the episode.

    Args:
        path: The file.
        seed: Determines the order of training tasks.
        held_out_fraction: Fraction of tasks kept for evaluation, at least one and never all. Their ids determine which,
            independent of the seed; tasks with the same words are on the same side.
        on_bad_row: `stop` reports all invalid rows; `skip` excludes and counts them.

    Raises:
        TaskError: If the file is missing, empty or has a bad line, two tasks share an id, or there is only one task.
        OptionError: If the fraction is not between 0 and 1.
    """

    def __init__(
        self, *, path: str, seed: int = 0, held_out_fraction: float = 0.1, on_bad_row: OnBadRow = "stop"
    ) -> None:
        tasks, self.skipped = read_tasks(Path(path), _parse, on_bad_row=on_bad_row)
        super().__init__(*split_tasks(tasks, held_out_fraction, where=path), seed=seed)


_KNOWN = ("prompt", "answer", "id", "tags", "private")
"""Keys of a line that are not private data of the task by themselves."""
_COLUMNS = "tasks: {source: file, path: FILE, columns: {prompt: KEY, answer: KEY}}"
"""Remedy for a file with other keys."""


def _parse(row: Mapping[str, Any], number: int) -> Task:
    """Return the task of a line.

    Raises:
        ValueError: If a key is misspelled or has an invalid value.
    """
    for key in row:
        near = difflib.get_close_matches(key, [name for name in _KNOWN if name not in row], n=1, cutoff=0.75)
        if near and key not in _KNOWN:
            raise ValueError(f'"{key}" is not a key of a task{did_you_mean(key, near)}; put other keys under `private`')
    if "prompt" not in row:
        others = did_you_mean("prompt", [name for name in row if isinstance(name, str)])
        raise ValueError(f'the key "prompt" is missing{others}; for other names use {_COLUMNS}')
    prompt, tags, private = row["prompt"], row.get("tags", {}), row.get("private", {})
    if not isinstance(prompt, str | list) or not isinstance(tags, dict) or not isinstance(private, dict):
        raise ValueError("`prompt` must be a text or a list of messages, `tags` and `private` must be objects")
    for tag, value in tags.items():
        if isinstance(value, dict | list) or value is None:
            raise ValueError(f"the tag {tag} must be a text or a number, got {json.dumps(value)}")
    known = {**private, **{key: value for key, value in row.items() if key not in ("prompt", "id", "tags", "private")}}
    if not known and "private" not in row:  # probably forgotten
        raise ValueError(
            'no data for the reward: add `answer`, another key, or `"private": {}` if the reward reads only the episode'
        )
    if known and all(value is None for value in known.values()):
        raise ValueError("`answer` has no value")
    opening: Any = prompt
    return Task(str(row.get("id", number)), opening, known, {tag: str(value) for tag, value in tags.items()})
