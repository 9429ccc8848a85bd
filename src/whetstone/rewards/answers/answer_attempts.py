"""Answer attempts of an episode: its turns without a tool call, and whether each one is right."""

from __future__ import annotations

from whetstone.rewards.answers.exact_match import is_plain_number, same_answer
from whetstone.rewards.answers.exact_number import last_number
from whetstone.trajectory import EndReason, Task, Trajectory


def answer_attempts(trajectory: Trajectory, task: Task) -> list[tuple[int, str, bool]]:
    """List the answer attempts of an episode as tuples (turn index, text, whether it is right).

    An attempt is a turn without a tool call. A last turn that was truncated is no attempt. If `task.private["answer"]`
    is a number, the last number of the text is compared, otherwise the full text.
    """
    num_complete = len(trajectory.turns) - (trajectory.ended is EndReason.MAX_TOKENS)
    return [
        (number, turn.message.text, _is_right(turn.message.text, str(task.private["answer"])))
        for number, turn in enumerate(trajectory.turns[:num_complete])
        if turn.is_answer
    ]


def _is_right(text: str, wanted: str) -> bool:
    return last_number(text) == last_number(wanted) if is_plain_number(wanted) else same_answer(text, wanted)
