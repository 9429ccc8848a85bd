"""Rubric criteria that a function of the episode and its task decides, without a judge.

A task names one by `rule`; a custom rule is any function `(Trajectory, Task) -> bool`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from whetstone.rewards.answers.exact_number import last_number
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.trajectory import Task, Trajectory

Rule = Callable[[Trajectory, Task], object]


def right_number(trajectory: Trajectory, task: Task) -> bool:
    """Return whether the last number of the answer equals that of the private `answer`."""
    number = last_number(final_answer(trajectory) or "")
    return number is not None and number == last_number(str(task.private.get("answer", "")))


def called_as_often(trajectory: Trajectory, task: Task) -> bool:
    """Return whether as many calls succeeded as the private `calls` contains, at least one."""
    worked = sum(call.outcome == "ok" for call in trajectory.calls)
    return worked >= max(1, len(task.private.get("calls", ())))


def number_was_read(trajectory: Trajectory, task: Task) -> bool:
    """Return whether the last number of the answer equals that of the last tool result."""
    read = [message.text for turn in trajectory.turns for message in turn.observation if message.role == "tool"]
    number = last_number(final_answer(trajectory) or "")
    return number is not None and bool(read) and number == last_number(read[-1])


def no_call(trajectory: Trajectory, task: Task) -> bool:
    """Return whether there were no calls; usually a criterion with points below 0."""
    return not trajectory.calls


RULES: Mapping[str, Rule] = {
    "called_as_often": called_as_often,
    "no_call": no_call,
    "number_was_read": number_was_read,
    "right_number": right_number,
}
"""Built-in rules, which a task may name without the recipe listing them."""
