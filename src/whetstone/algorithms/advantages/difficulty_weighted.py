"""Advantages weighted by the difficulty of the task, known before sampling or measured by it.

Note: The weight must be equal within a group; otherwise advantages are not centered.
"""

from __future__ import annotations

from whetstone.algorithms.axes import PerTrajectory
from whetstone.algorithms.group_statistics import normalize_in_sets, set_mean
from whetstone.bounded_types import NotNegative, Positive, Share


def difficulty_weighted(
    rewards: PerTrajectory,
    group: PerTrajectory,
    hardness: PerTrajectory,
    *,
    low: Positive = 1 / 3,
    high: Positive = 3.0,
) -> PerTrajectory:
    """Compute the reward minus the group mean, times the relative difficulty of the task (GUI-G1).

        A_i = w (S_i − mean(S)),   w = hardness / mean hardness of the batch's trajectories, within [low, high]

    GUI-G1 takes 1 over the relative size of the target for hardness.

    Args:
        rewards: [N] total reward per trajectory.
        group: [N] index of the task of each trajectory.
        hardness: [N] above 0, the same for a whole group; the task's tag `difficulty`.
        low: Minimum weight.
        high: Maximum weight.

    Raises:
        ValueError: If a hardness is not above 0.

    Source: Zhou et al. 2025 (GUI-G1), arXiv:2505.15810, §4; the bounds are not from the paper.
    """
    if bool((hardness <= 0).any()):
        raise ValueError(f"hardness must be above 0, got {hardness.min().item():g}")
    hardness = hardness.double()
    weight = (hardness / hardness.mean()).clamp(low, high)
    return weight * normalize_in_sets(rewards, group, scale="none")


def dgrpo(
    rewards: PerTrajectory,
    group: PerTrajectory,
    *,
    highest: Positive = 1.0,
    floor: Share = 0.25,
    epsilon: NotNegative = 1e-6,
) -> PerTrajectory:
    """Compute GRPO advantages, with tasks weighted by the fraction of their reward that the policy still misses.

        A_i = z(S_i) · w / mean of w over the batch,   w = max(1 − mean(S) / highest, floor)

    Args:
        rewards: [N] total reward per trajectory.
        group: [N] index of the task of each trajectory.
        highest: Reward of a perfect episode.
        floor: Minimum weight w, so that tasks that are nearly solved still count.
        epsilon: Added to deviations.

    Source: weighting GRPO's groups by measured difficulty, as in "Difficulty-Aware Group Policy Optimization" (2026)
    and its relatives, which differ in the weight; this one is an addition.
    """
    weight = (1 - set_mean(rewards, group) / highest).clamp(min=floor)
    return normalize_in_sets(rewards, group, epsilon=epsilon) * weight / weight.mean()
