"""Was the tool needed at all? Where the model solves a task without, using one is too much; where not, none too few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from whetstone.ranges import ShareBelowOne
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.efficiency.counting import calls_to
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory


async def self_aware(
    trajectory: Trajectory,
    task: Task,
    *,
    outcome: Reward = exact_match,
    known_from: float = 0.75,
    penalty: ShareBelowOne = 0.5,
    tools: list[str] | None = None,
) -> Score:
    """The outcome, less a share of it where a right answer used a tool for what is known without.

    How often the task is solved without tools is `task.private["pass_rate_without_tools"]`, measured before; where it
    is not there, nothing is taken away. `overuse` and `underuse` are 0 or 1.

    Args:
        outcome: Says whether the answer is right.
        known_from: The pass rate from which a task counts as known.
        penalty: The share that is taken away, from 0 to below 1.
        tools: Whose calls count; null: all tools'.

    Source: Qian et al. 2025 (SMART), arXiv:2502.11435, where it is a diagnostic; as a reward it is ours.
    """
    if not 0 <= penalty < 1:
        raise ValueError(f"penalty is from 0 to below 1, got {penalty:g}")
    score = await outcome(trajectory, task)
    if score.invalid:
        return score
    rate = task.private.get("pass_rate_without_tools")
    used = calls_to(trajectory, tools) > 0
    overuse = rate is not None and used and float(rate) >= known_from
    underuse = rate is not None and not used and float(rate) < known_from
    factor = 1 - penalty if overuse and score.success else 1.0
    parts = {**score.parts, "overuse": float(overuse), "underuse": float(underuse)}
    return replace(score, value=score.value * factor, parts=parts)


def overuse_rate(used: Sequence[bool], pass_rates: Sequence[float], *, known_from: float = 0.75) -> float:
    """The share of episodes that used a tool, of those whose task is solved without; 0 where there is none.

    Source: Qian et al. 2025 (SMART), arXiv:2502.11435.
    """
    known = [one for one, rate in zip(used, pass_rates, strict=True) if rate >= known_from]
    return sum(known) / len(known) if known else 0.0
