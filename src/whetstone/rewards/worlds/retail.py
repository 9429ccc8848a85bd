"""Was the customer helped, as tau2-bench counts it: the database, and what had to be said.

What its natural-language assertions ask takes a model to judge. Most of them are about what has to be said, and that
stands in for them here; the others are not judged, and counted.

Easy to get wrong: "10" is in "#W1054" and in "$110". What had to be said is a whole word or number.

Source: tau2-bench, arXiv:2506.07982.
"""

from __future__ import annotations

import re

from whetstone.trajectory import Score, Task, Trajectory

_NUMBER = re.compile(r"(?<![\w.#-])\d+(?:\.\d+)?(?![\w%]|\.\d)")


async def retail(trajectory: Trajectory, task: Task) -> Score:
    """1 where the database is as the gold actions leave it, everything that had to be said was said, and the user ended
    the conversation; else 0. Where nothing was to be changed or said, anything at all has to have been done.

    What counts is the task's `reward_basis`: `DB` the database; `COMMUNICATE` or `NL_ASSERTION` what had to be said;
    both where a task names none. `not_judged` counts assertions for which nothing stands in.
    """
    final, private = trajectory.final, task.private
    basis, wanted = private.get("reward_basis", ["DB", "COMMUNICATE"]), private["to_say"]
    said = " ".join(turn.message.text for turn in trajectory.turns)
    database = bool(final.get("same")) or "DB" not in basis
    spoken = basis == ["DB"] or all(was_said(text, said) for text in wanted)
    ended = bool(final.get("user_ended"))
    idle = not (final.get("success") or wanted)
    right = database and spoken and ended and not idle
    parts = {"database": float(database), "communicated": float(spoken), "user_ended": float(ended)}
    parts["not_judged"] = 0.0 if wanted else float(len(private.get("assertions", ())))
    return Score(float(right), parts, success=right)


def was_said(wanted: str, said: str) -> bool:
    """Whether a text says another one, as a whole; a number may be written in another way.

    >>> was_said("10", "Order #W1054 has 10 options."), was_said("10", "#W1054, $110"), was_said("481.5", "$481.50")
    (True, False, True)
    """
    wanted, said = (text.replace(",", "").lower() for text in (wanted, said))
    if _NUMBER.fullmatch(wanted):
        return any(float(number) == float(wanted) for number in _NUMBER.findall(said))
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", said) is not None
