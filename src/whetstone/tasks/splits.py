"""Splits of tasks into training and held-out tasks, without overlap of ids or texts.

Note:
    Public data contains duplicates. A question that occurs twice, once with an additional blank, would be both trained
    on and held out. The split is therefore by *texts*, compared without case, white space and punctuation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.seeding import derive_seed
from whetstone.trajectory import Task

_WORDS = re.compile(r"\w+")


def comparison_text(task: Task) -> str:
    """Return the text by which tasks are compared: the words of the prompt.

    Return the id if the prompt has no words.
    """
    words = _WORDS.findall(task.text.lower())
    return " ".join(words) if words else f"\x1f{task.id}"


def split_tasks(tasks: Sequence[Task], share: float, *, where: str) -> tuple[list[Task], list[Task]]:
    """Split tasks by their texts into training and held-out tasks, both in order.

    The split depends on the ids only, not on a seed. Tasks with the same text are on the same side.

    Args:
        tasks: Tasks with distinct ids.
        share: Fraction of the texts that are held out; at least one and never all.
        where: Origin of the tasks, for messages.

    Returns:
        Training tasks and held-out tasks.

    Raises:
        OptionError: If the fraction is not between 0 and 1.
        TaskError: If there are fewer than two texts, or two tasks with one id.
    """
    if not 0 < share < 1:
        raise OptionError("held_out_fraction", f"must be between 0 and 1, got {share:g}")
    ids = {task.id for task in tasks}
    if len(ids) < len(tasks):
        raise TaskError(f"{where}: {len(tasks)} tasks have {len(ids)} distinct ids; give each a distinct id, or none")
    first_of: dict[str, str] = {}
    for task in tasks:
        first_of.setdefault(comparison_text(task), task.id)
    if len(first_of) < 2:
        raise TaskError(f"{where}: a single task cannot be both trained on and held out; add a second task")
    count = min(max(1, round(share * len(first_of))), len(first_of) - 1)
    chosen = set(sorted(first_of.values(), key=lambda id: derive_seed("held out", id))[:count])
    held_out = {text for text, id in first_of.items() if id in chosen}
    sides: tuple[list[Task], list[Task]] = ([], [])
    for task in tasks:
        sides[comparison_text(task) in held_out].append(task)
    return sides


def split_unless_all(tasks: list[Task], share: float, *, where: str) -> tuple[list[Task], list[Task]]:
    """Split tasks as `split_tasks` does, or use all tasks for both sides.

    A fraction of 1 holds out all tasks, as benchmarks do, and trains on the same.
    """
    return (tasks, tasks) if share == 1.0 else split_tasks(tasks, share, where=where)


def check_disjoint(training: Iterable[Task], held_out: Iterable[Task], *, where: str) -> None:
    """Check that no held-out task has the text of a training task.

    Args:
        training: Training tasks.
        held_out: Held-out tasks.
        where: Origin of the tasks, for the message.

    Raises:
        TaskError: If a text is on both sides; the message has the number and an example.
    """
    known = {comparison_text(task): task.id for task in training}
    both = [(known[comparison_text(task)], task.id) for task in held_out if comparison_text(task) in known]
    if both:
        (one, other), more = both[0], len(both)
        problem = f"{more} held-out tasks are also training tasks, such as {other} ({one})"
        raise TaskError(f"{where}: {problem}; remove them, or set `held_out_fraction` to split one file")
