"""Does the final answer match a pattern?"""

from __future__ import annotations

import regex

from whetstone.ranges import RegularExpression
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.trajectory import Score, Task, Trajectory

_SECONDS = 1.0


async def pattern(
    trajectory: Trajectory, task: Task, *, pattern: RegularExpression | None = None, full_match: bool = True
) -> Score:
    """1 where the final answer matches, else 0; a match that takes longer than a second is none, and `undecided`.

    Args:
        pattern: A regular expression; null: that in `task.private["pattern"]`.
        full_match: Require the full answer to match, except for surrounding white space; false: any part of it, which
            a long answer easily satisfies.

    Raises:
        ValueError: It is no regular expression.
    """
    said = final_answer(trajectory)
    wanted = pattern if pattern is not None else str(task.private["pattern"])
    try:
        compiled = regex.compile(wanted, regex.DOTALL)
    except regex.error as error:
        raise ValueError(f"{wanted!r} is no regular expression: {error}") from None
    undecided = matches = False
    if said is not None:
        find = compiled.fullmatch if full_match else compiled.search
        try:
            matches = find(said.strip(), timeout=_SECONDS) is not None
        except TimeoutError:
            undecided = True
    return Score(float(matches), {"matches": float(matches), "undecided": float(undecided)}, success=matches)
