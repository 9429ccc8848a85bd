"""Reward for a final answer that matches a regular expression."""

from __future__ import annotations

import regex

from whetstone.bounded_types import RegularExpression
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.trajectory import Score, Task, Trajectory

_SECONDS = 1.0


async def pattern(
    trajectory: Trajectory, task: Task, *, pattern: RegularExpression | None = None, full_match: bool = True
) -> Score:
    """Return 1 if the final answer matches, else 0; a match that takes over a second counts as 0 and `undecided`.

    Args:
        pattern: A regular expression; null: that in `task.private["pattern"]`.
        full_match: Require the full answer to match, except for surrounding white space; false: any part of it, which
            a long answer easily satisfies.

    Raises:
        ValueError: If it is not a regular expression.
    """
    answer = final_answer(trajectory)
    wanted = pattern if pattern is not None else str(task.private["pattern"])
    try:
        compiled = regex.compile(wanted, regex.DOTALL)
    except regex.error as error:
        raise ValueError(f"{wanted!r} is not a regular expression: {error}") from None
    undecided = matches = False
    if answer is not None:
        find = compiled.fullmatch if full_match else compiled.search
        try:
            matches = find(answer.strip(), timeout=_SECONDS) is not None
        except TimeoutError:
            undecided = True
    return Score(float(matches), {"matches": float(matches), "undecided": float(undecided)}, success=matches)
