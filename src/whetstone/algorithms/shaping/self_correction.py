"""What makes a second attempt better than the first, and not only as good? A bonus for what it mended."""

from __future__ import annotations

from whetstone.algorithms.levels import PerTurn
from whetstone.algorithms.returns import preceding
from whetstone.ranges import NotNegative


def self_correction(process_rewards: PerTurn, trajectory: PerTurn, *, weight: NotNegative = 10.0) -> PerTurn:
    """Each attempt's reward and a multiple of what it adds to the one before (SCoRe, stage two).

        r_t ← r_t + α (r_t − r_{t−1});   the first attempt's stays

    Args:
        process_rewards: [M] of each attempt, one a turn.
        trajectory: [M] which trajectory the turn belongs to.
        weight: α.

    Source: Kumar et al. 2024, arXiv:2409.12917, §4.2; α as remembered there.
    """
    rewards = process_rewards.double()
    return rewards + weight * (rewards - preceding(rewards, trajectory, rewards.clone()))
