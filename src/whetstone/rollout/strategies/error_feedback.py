"""Hints from failed attempts: their errors in a few lines, without the answer."""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.trajectory import EndReason, Task, Trajectory

_LONGEST = 60
"""Maximum number of characters of a quoted tool result or answer."""
_FEW = 2
"""Number of attempts in the hint."""


def error_feedback(task: Task, failed: Sequence[Trajectory]) -> str:
    """Describe the failures of the first attempts: failed calls, and the wrong or missing answer.

    Lines with the task's answer are left out.

    Source: Agent-RLVR 2025, arXiv:2506.11425: error feedback from the failed attempt; the wording is an addition.
    """
    answer = str(task.private.get("answer", ""))
    attempts = [_describe_failures(trajectory) for trajectory in failed[:_FEW]]
    lines = [
        "Attempts before this one failed.",
        *(line for each in attempts for line in each),
        "Do it differently.",
    ]
    return "\n".join(dict.fromkeys(line for line in lines if not answer or answer not in line))


def _describe_failures(trajectory: Trajectory) -> list[str]:
    lines = []
    for turn in trajectory.turns:
        if turn.message.malformed:
            lines.append("A call could not be read.")
        results = [message.text for message in turn.observation if message.role == "tool"]
        for call, text in zip(turn.calls, [*results, *[""] * len(turn.calls)], strict=False):
            if call.outcome != "ok":
                lines.append(f"A call of {call.name} failed: {_short(text)}")
    if trajectory.ended in (EndReason.TERMINATED, EndReason.TOOL_STOPPED):
        return [*lines, f'It ended with "{_short(trajectory.final_text)}", which was wrong.']
    return [*lines, "It came to no end."]


def _short(text: str | None) -> str:
    line = " ".join((text or "nothing").split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
