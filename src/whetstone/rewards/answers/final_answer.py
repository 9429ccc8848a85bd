"""Final answer of an episode: its last text without a tool call, or the argument of `submit`."""

from __future__ import annotations

import json

from whetstone.trajectory import EndReason, Trajectory


def final_answer(trajectory: Trajectory) -> str | None:
    """Return the final answer of an episode.

    Returns None if the episode was truncated, failed, or has no answer. The first argument of a call of the tool
    `submit` is an answer, otherwise the last text.
    """
    if trajectory.ended is EndReason.TERMINATED:
        return trajectory.final_text
    if trajectory.ended is not EndReason.TOOL_STOPPED or not trajectory.turns:
        return None
    for call in trajectory.turns[-1].message.tool_calls:
        if call.name == "submit":
            try:
                arguments = json.loads(call.arguments)
            except ValueError:
                continue
            if isinstance(arguments, dict) and arguments:
                return str(next(iter(arguments.values())))
    return None
