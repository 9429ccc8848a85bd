"""Selection of tasks by a date column, and comparison with the knowledge cutoff of a model.

A task that was published before a model was trained can be in its training data. Success on newer tasks cannot be
memorized.

Source: SWE-rebench (arXiv:2505.20411), which marks results on tasks that are older than the model; LiveCodeBench
    (arXiv:2403.07974).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any

from whetstone.errors import did_you_mean
from whetstone.plugins import OptionError
from whetstone.tasks.finite_source import ListedTasks
from whetstone.tasks.protocol import Source
from whetstone.trajectory import Task

_MONTH = re.compile(r"\d{4}(-\d{2})?")
CUTOFF_TAG = "cutoff"
"""Tag of tasks with the values `after` and `before`; evaluations report success by tag."""


def parse_date(value: Any) -> datetime:
    """Parse a date in ISO 8601, such as `2024-05-31`, `2024-05`, `2024` or `2024-05-31T12:00:00Z`; without a zone: UTC.

    A month and a year mean their first day.

    Raises:
        ValueError: If it is not a date.
    """
    text = value.isoformat() if isinstance(value, date) else str(value).strip()
    if _MONTH.fullmatch(text):
        text = f"{text}-01" if "-" in text else f"{text}-01-01"
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a date; write YYYY-MM-DD") from None
    return read if read.tzinfo is not None else read.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DateRange:
    """Dates by which the tasks of a source are selected: the keys `date`, `since`, … of `tasks`.

    Raises:
        OptionError: If a value is not a date, `column` is missing, or no date is between `since` and `until`.
    """

    column: str | None = None
    """Tag or private column with the date of a task."""
    since: Any = None
    """First date; None: no limit."""
    until: Any = None
    """End, not included; None: no limit."""
    held_out_since: Any = None
    """Date that separates training tasks from held-out ones; None: the split of the source."""
    cutoff: Any = None
    """Knowledge cutoff of the model; None: tasks are not compared with it."""

    def __post_init__(self) -> None:
        """Parse the dates."""
        for key in ("since", "until", "held_out_since", "cutoff"):
            value = getattr(self, key)
            if value is None:
                continue
            if self.column is None:
                raise OptionError(key, "requires tasks.date, the column with the date of a task")
            try:
                object.__setattr__(self, key, parse_date(value))
            except ValueError as error:
                raise OptionError(key, str(error)) from None
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise OptionError("until", f"must be after tasks.since ({self.since:%Y-%m-%d})")

    def is_in_range(self, at: datetime) -> bool:
        """Return whether `since <= at < until`."""
        return (self.since is None or at >= self.since) and (self.until is None or at < self.until)


def select_dated_tasks(source: Source, dates: DateRange) -> str:
    """Keep the tasks of a source that are in a range of dates; split and tag them by date.

    Args:
        source: Source with a list of tasks; it is modified.
        dates: Dates with a column.

    Returns:
        Line for the user: number of tasks, and the fraction of held-out tasks that are newer than the model.

    Raises:
        OptionError: If the source has no list of tasks, a task has no date, or no task is left.
    """
    if not isinstance(source, ListedTasks):
        raise OptionError("date", "the source generates its tasks, which have no dates")
    training, held_out = source.listed_tasks
    known = {task.id: _date_of(task, str(dates.column)) for task in (*training, *held_out)}
    sides: Sequence[Iterable[Task]] = (training, held_out)
    if dates.held_out_since is not None:
        every = {task.id: task for task in (*training, *held_out)}.values()
        new = [known[task.id] >= dates.held_out_since for task in every]
        sides = ([t for t, after in zip(every, new, strict=True) if not after],
                 [t for t, after in zip(every, new, strict=True) if after])  # fmt: skip
    selected = [
        [_tag(task, known[task.id], dates) for task in side if dates.is_in_range(known[task.id])] for side in sides
    ]
    span = f"the tasks are from {min(known.values()):%Y-%m-%d} to {max(known.values()):%Y-%m-%d}"
    keys = ("since", "until", "held_out_since")
    for name, before, after in zip(("training", "held-out"), sides, selected, strict=True):
        if not after and (before or dates.held_out_since is not None):
            raise OptionError(next(k for k in keys if getattr(dates, k)), f"leaves no {name} tasks; {span}")
    source.replace_tasks(*selected)
    counts = f"{len(selected[0])} training and {len(selected[1])} held-out tasks of {len(known)}"
    line = f"tasks.date: {counts} are kept; {span}"
    if dates.cutoff is None:
        return line
    return (
        f"{line}; {fraction_after_cutoff(selected[1]):.1%} of the held-out tasks are newer than the model "
        f"(tasks.cutoff {dates.cutoff:%Y-%m-%d}); the others can be in its training data"
    )


def fraction_after_cutoff(tasks: Sequence[Task]) -> float:
    """Return the fraction of tasks that are newer than the model (`tasks.cutoff`), from 0 to 1."""
    return sum(task.tags.get(CUTOFF_TAG) == "after" for task in tasks) / len(tasks)


def _tag(task: Task, at: datetime, dates: DateRange) -> Task:
    if dates.cutoff is None:
        return task
    return replace(task, tags={**task.tags, CUTOFF_TAG: "after" if at > dates.cutoff else "before"})


def _date_of(task: Task, column: str) -> datetime:
    columns: Mapping[str, Any] = {**task.private, **task.tags}
    if columns.get(column) is None:
        near = did_you_mean(column, columns)
        problem = f"task {task.id} has no column {column}{near}"
        raise OptionError("date", f"{problem}; options of the source (`private`, `tags`) list the columns of its tasks")
    try:
        return parse_date(columns[column])
    except ValueError as error:
        raise OptionError("date", f"task {task.id}: {column}: {error}") from None
