"""Which turns of an episode are answers, and which of them are right?"""

from __future__ import annotations

from whetstone.rewards.answers.exact_number import last_number
from whetstone.trajectory import EndReason, Task, Trajectory


def answers_of(trajectory: Trajectory, task: Task) -> list[tuple[int, str, bool]]:
    """(turn, its text, whether its last number is the right one) of each turn that calls nothing; a last one that was
    cut off before its end is no answer."""
    whole = len(trajectory.turns) - (trajectory.ended is EndReason.MAX_TOKENS)
    right = last_number(str(task.private["answer"]))
    return [
        (number, turn.message.text, last_number(turn.message.text) == right)
        for number, turn in enumerate(trajectory.turns[:whole])
        if not turn.message.tool_calls and not turn.message.malformed and not turn.aside
    ]
