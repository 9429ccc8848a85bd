"""Form first, then the answer, then using several tools together: each counts only where the one before does."""

from __future__ import annotations

from dataclasses import replace

from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.efficiency.calls_ran import well_formed
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
    """−1 for calls that are none; else how right the answer is, and 0.1 more where it is right at all and every one of
    several tools was of use.

    Args:
        outcome: Gives the measure, and success.
        measure: The part of its score that says how right it is, from 0 to 1; where it has none, its value does.
        tools: Those that are to work together; null: no bonus.
        bonus: What that pays.
        presence: As in the code, a tool that was only called counts as of use; otherwise a call of it must have run and
            said something.

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
    """The tools an episode called; without `presence`, those whose call ran and said something."""
    found = set()
    for turn in trajectory.turns:
        said = [message.text.strip() for message in turn.observation if message.role == "tool"]
        for call, text in zip(turn.calls, [*said, *[""] * len(turn.calls)], strict=False):
            if presence or (call.outcome == "ok" and text):
                found.add(call.name)
    return found
