"""How are tasks read from a file of JSON lines? One object a line, each checked, mistakes named by file and line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from whetstone.errors import TaskError, did_you_mean
from whetstone.seeding import derive_random
from whetstone.tasks.splits import split
from whetstone.trajectory import Task

OnBadTask = Literal["error", "skip"]


def read_tasks(
    path: Path, parse: Callable[[Mapping[str, Any], int], Task], *, on_bad_task: OnBadTask = "error"
) -> tuple[list[Task], int]:
    """(tasks, how many lines were skipped). Blank lines are neither.

    Args:
        parse: Makes a task of one object and its line number; raises ValueError or KeyError where it cannot.
        on_bad_task: `error` stops at the first bad line; `skip` leaves it out and counts it.

    Raises:
        TaskError: No such file, nothing in it, or a bad line; the message names file and line.
    """
    if not path.is_file():
        beside = [p.name for p in path.parent.glob("*.jsonl")] if path.parent.is_dir() else []
        raise TaskError(f"{path}: no such task file{did_you_mean(path.name, beside)}")
    tasks: list[Task] = []
    skipped = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                tasks.append(_parsed(line, number, parse))
            except ValueError as error:
                if on_bad_task == "error":
                    raise TaskError(f"{path}:{number}  {error}; `on_bad_task: skip` leaves such lines out") from None
                skipped += 1
    if not tasks:
        raise TaskError(f"{path}: no tasks in it" + (f" ({skipped} bad lines skipped)" if skipped else ""))
    return tasks, skipped


def _parsed(line: bytes, number: int, parse: Callable[[Mapping[str, Any], int], Task]) -> Task:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"a task is a JSON object, got {type(row).__name__}")
    try:
        return parse(row, number)
    except KeyError as error:
        raise ValueError(f"the key {error} is missing{did_you_mean(str(error.args[0]), row)}") from None


class Jsonl:
    """Tasks of your own: `{"prompt": …, "answer": …}` a line, optionally `id` and `tags`.

    Args:
        path: The file.
        seed: The order in which training tasks come.
        held_out_share: The share of tasks kept for evaluation, at least one and never all. Which they are is
            decided by their ids, whatever the seed; tasks of the same words are on the same side.
        on_bad_task: `error`, or `skip` to leave bad lines out and count them.

    Raises:
        TaskError: The file is missing, empty or has a bad line, two tasks share an id, or there is only one task.
        OptionError: The share is not between 0 and 1.
    """

    def __init__(
        self, *, path: str, seed: int = 0, held_out_share: float = 0.1, on_bad_task: OnBadTask = "error"
    ) -> None:
        tasks, self.skipped = read_tasks(Path(path), _parse, on_bad_task=on_bad_task)
        training, self._held_out = split(tasks, held_out_share, where=path)
        self._endless = Endless(training, seed=seed)

    def task(self, index: int) -> Task:
        """Each training task once an epoch, every epoch in another order."""
        return self._endless[index]

    def held_out(self, count: int) -> Sequence[Task]:
        """In the order of the file."""
        return self._held_out[:count]


class Endless:
    """A list of tasks that goes on for ever: every epoch a new order, each task once an epoch."""

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        self.tasks, self.seed = tasks, seed
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def __getitem__(self, index: int) -> Task:
        epoch, place = divmod(index, len(self.tasks))
        return self.tasks[self._order(epoch)[place]]

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(len(self.tasks)))
        derive_random(self.seed, "order", epoch).shuffle(order)
        return order


def _parse(row: Mapping[str, Any], number: int) -> Task:
    tags = row.get("tags", {})
    if not isinstance(row["prompt"], str) or not isinstance(tags, dict):
        raise ValueError("`prompt` is text and `tags` an object")
    return Task(
        str(row.get("id", number)), row["prompt"], {"answer": row["answer"]}, {k: str(v) for k, v in tags.items()}
    )
