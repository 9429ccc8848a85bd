"""Which criteria of a rubric need no judge? Those a function of the episode and its task decides.

A task names one by `rule`; one of a recipe's own is any function `(Trajectory, Task) -> bool`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from whetstone.rewards.answers.exact_number import last_number
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.trajectory import Task, Trajectory

Rule = Callable[[Trajectory, Task], object]


def right_number(trajectory: Trajectory, task: Task) -> bool:
    """The last number of the answer is that of the private `answer`."""
    found = last_number(final_answer(trajectory) or "")
    return found is not None and found == last_number(str(task.private.get("answer", "")))


def called_as_often(trajectory: Trajectory, task: Task) -> bool:
    """At least as many calls worked as the private `calls` has; one where it has none."""
    worked = sum(call.outcome == "ok" for call in trajectory.calls)
    return worked >= max(1, len(task.private.get("calls", ())))


def number_was_read(trajectory: Trajectory, task: Task) -> bool:
    """The last number of the answer is that of the last thing a tool said."""
    read = [message.text for turn in trajectory.turns for message in turn.observation if message.role == "tool"]
    found = last_number(final_answer(trajectory) or "")
    return found is not None and bool(read) and found == last_number(read[-1])


def no_call(trajectory: Trajectory, task: Task) -> bool:
    """Nothing was called; a thing to be paid for with points below 0."""
    return not trajectory.calls


RULES: Mapping[str, Rule] = {
    "called_as_often": called_as_often,
    "no_call": no_call,
    "number_was_read": number_was_read,
    "right_number": right_number,
}
"""Rules a task may name without a recipe that lists them."""
