"""Which turns of an episode are answers, and which of them are right?"""

from __future__ import annotations

from whetstone.rewards.answers.exact_match import is_number, same_answer
from whetstone.rewards.answers.exact_number import last_number
from whetstone.trajectory import EndReason, Task, Trajectory


def answers_of(trajectory: Trajectory, task: Task) -> list[tuple[int, str, bool]]:
    """(turn, its text, whether it is right) of each turn that calls nothing; a last one that was cut off before its end
    is no answer. Where the right answer is a number, the last number of the text counts, else all of it."""
    whole = len(trajectory.turns) - (trajectory.ended is EndReason.MAX_TOKENS)
    return [
        (number, turn.message.text, _is_right(turn.message.text, str(task.private["answer"])))
        for number, turn in enumerate(trajectory.turns[:whole])
        if not turn.message.tool_calls and not turn.message.malformed and not turn.aside
    ]


def _is_right(text: str, wanted: str) -> bool:
    return last_number(text) == last_number(wanted) if is_number(wanted) else same_answer(text, wanted)
