"""Tool-Star reward: format, then the answer, then the combined use of several tools, each gated by the previous."""

from __future__ import annotations

from dataclasses import replace

from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.efficiency.executed_calls import well_formed
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory


async def tool_star(
    trajectory: Trajectory,
    task: Task,
    *,
    outcome: Reward = exact_match,
    measure: str = "f1",
    tools: list[str] | None = None,
    bonus: float = 0.1,
    presence: bool = False,
) -> Score:
    """Return −1 for malformed calls, else the accuracy, plus a bonus if a partly right answer used all of `tools`.

    Args:
        outcome: Reward that determines accuracy and success.
        measure: Component of the outcome's score that is the accuracy, from 0 to 1; if missing, the outcome's value is.
        tools: Names of the tools to use together; null: no bonus.
        bonus: Bonus for using all tools; requires an accuracy above 0.
        presence: Count a tool as used if it was called, as in the code; otherwise a call must have run and returned
            text.

    Source: Dong et al. 2025 (Tool-Star), arXiv:2505.16410, and its code.
    """
    score = await outcome(trajectory, task)
    if score.invalid:
        return score
    fine = (await well_formed(trajectory, task)).value == 1.0
    accuracy = score.parts.get(measure, score.value)
    together = bool(tools) and set(tools or ()) <= used_tools(trajectory, presence=presence)
    value = -1.0 if not fine else accuracy + bonus * (together and accuracy > 0)
    parts = {**score.parts, "format": float(fine), "accuracy": accuracy, "together": float(together)}
    return replace(score, value=value, parts=parts)


def used_tools(trajectory: Trajectory, *, presence: bool = False) -> set[str]:
    """Return the names of the tools that an episode used.

    With `presence`, any call counts; otherwise only a call that ran and returned text.
    """
    names = set()
    for turn in trajectory.turns:
        results = [message.text.strip() for message in turn.observation if message.role == "tool"]
        for call, text in zip(turn.calls, [*results, *[""] * len(turn.calls)], strict=False):
            if presence or (call.outcome == "ok" and text):
                names.add(call.name)
    return names
