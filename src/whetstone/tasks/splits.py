"""Which tasks are trained on, and which are held out? Never the same ones, and never the same words under two ids.

Easy to get wrong: data from the net has doubles. A question that stands twice, once with a blank more, would be trained
on and held out. So sides are given to *texts*, compared without case, white space and punctuation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.seeding import derive_seed
from whetstone.trajectory import Task

_WORDS = re.compile(r"\w+")


def text_of(task: Task) -> str:
    """What is compared: the words of the prompt; of a task without one, its id."""
    words = _WORDS.findall(task.text.lower())
    return " ".join(words) if words else f"\x1f{task.id}"


def split(tasks: Sequence[Task], share: float, *, where: str) -> tuple[list[Task], list[Task]]:
    """(training, held out), each in the order of `tasks`; whatever a seed, a text is on the same side in every run.

    Args:
        share: Of the texts that are held out; at least one and never all.
        where: What the tasks come from, for messages.

    Raises:
        OptionError: The share is not between 0 and 1.
        TaskError: Fewer than two texts, or two tasks of one id.
    """
    if not 0 < share < 1:
        raise OptionError("held_out_fraction", f"between 0 and 1, got {share:g}")
    ids = {task.id for task in tasks}
    if len(ids) < len(tasks):
        raise TaskError(f"{where}: {len(tasks)} tasks share {len(ids)} ids; give each an id of its own, or none")
    first_of: dict[str, str] = {}
    for task in tasks:
        first_of.setdefault(text_of(task), task.id)
    if len(first_of) < 2:
        raise TaskError(f"{where}: one task cannot be both trained on and held out; at least two are needed")
    count = min(max(1, round(share * len(first_of))), len(first_of) - 1)
    chosen = set(sorted(first_of.values(), key=lambda id: derive_seed("held out", id))[:count])
    held_out = {text for text, id in first_of.items() if id in chosen}
    sides: tuple[list[Task], list[Task]] = ([], [])
    for task in tasks:
        sides[text_of(task) in held_out].append(task)
    return sides


def split_unless_all(tasks: list[Task], share: float, *, where: str) -> tuple[list[Task], list[Task]]:
    """As `split`; a share of 1 holds out all of them, as benchmarks do, and trains on the same."""
    return (tasks, tasks) if share == 1.0 else split(tasks, share, where=where)


def check_apart(training: Iterable[Task], held_out: Iterable[Task], *, where: str) -> None:
    """See that given splits share no text.

    Raises:
        TaskError: They do; the message says how many and names one.
    """
    known = {text_of(task): task.id for task in training}
    both = [(known[text_of(task)], task.id) for task in held_out if text_of(task) in known]
    if both:
        (one, other), more = both[0], len(both)
        said = f"{more} held-out tasks are trained on as well, such as {other} ({one})"
        raise TaskError(f"{where}: {said}; take them out, or let `held_out_fraction` split one of the two")
