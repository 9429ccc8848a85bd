"""Reward shaping with a bonus for the improvement over the previous attempt (SCoRe, stage two)."""

from __future__ import annotations

from whetstone.algorithms.axes import PerTurn
from whetstone.algorithms.returns import previous_values
from whetstone.bounded_types import NotNegative


def self_correction(process_rewards: PerTurn, trajectory: PerTurn, *, weight: NotNegative = 10.0) -> PerTurn:
    """Add a multiple of the improvement over the previous attempt to each reward (SCoRe, stage two).

        r_t ← r_t + α (r_t − r_{t−1});   the first attempt's reward is unchanged

    Args:
        process_rewards: [M] reward of each attempt, one per turn.
        trajectory: [M] index of the trajectory of each turn.
        weight: Factor α of the improvement over the previous attempt.

    Source: Kumar et al. 2024, arXiv:2409.12917, §4.2; the default of α is quoted from memory.
    """
    rewards = process_rewards.double()
    return rewards + weight * (rewards - previous_values(rewards, trajectory, rewards.clone()))
