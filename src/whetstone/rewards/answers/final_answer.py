"""What did the episode answer? Its last text where that calls nothing, or what it submitted."""

from __future__ import annotations

import json

from whetstone.trajectory import EndReason, Trajectory


def final_answer(trajectory: Trajectory) -> str | None:
    """The answer an episode ended with; None where it was cut short, failed, or said nothing that is one.

    A call of the tool `submit` is an answer: the text it was given, its first where it was given several.
    """
    if trajectory.ended is EndReason.TERMINATED:
        return trajectory.final_text
    if trajectory.ended is not EndReason.TOOL_STOPPED or not trajectory.turns:
        return None
    for call in trajectory.turns[-1].message.tool_calls:
        if call.name == "submit":
            try:
                given = json.loads(call.arguments)
            except ValueError:
                continue
            if isinstance(given, dict) and given:
                return str(next(iter(given.values())))
    return None
