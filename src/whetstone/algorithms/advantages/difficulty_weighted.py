"""Do easy tasks drown hard ones? Weighted by hardness, known before sampling or measured by it.

Easy to get wrong: a weight must be the same for a whole group, or what is centred no longer is.
"""

from __future__ import annotations

from whetstone.algorithms.levels import PerTrajectory
from whetstone.algorithms.sets import normalised, set_mean
from whetstone.ranges import NotNegative, Positive, Share


def difficulty_weighted(
    rewards: PerTrajectory,
    group: PerTrajectory,
    hardness: PerTrajectory,
    *,
    low: Positive = 1 / 3,
    high: Positive = 3.0,
) -> PerTrajectory:
    """Reward minus the group's mean, times how hard the task is beside the batch's (GUI-G1).

        A_i = w (S_i − mean(S)),   w = hardness / mean hardness of the batch's trajectories, within [low, high]

    GUI-G1 takes 1 over the relative size of the target for hardness.

    Args:
        rewards: [N] all a trajectory earned.
        group: [N] which task it belongs to.
        hardness: [N] above 0, the same for a whole group; the task's tag `difficulty`.
        low: Least weight.
        high: Largest weight.

    Raises:
        ValueError: A hardness is not above 0.

    Source: Zhou et al. 2025 (GUI-G1), arXiv:2505.15810, §4; bounds are ours.
    """
    if bool((hardness <= 0).any()):
        raise ValueError(f"hardness is above 0: got {hardness.min().item():g}")
    hardness = hardness.double()
    weight = (hardness / hardness.mean()).clamp(low, high)
    return weight * normalised(rewards, group, scale="none")


def dgrpo(
    rewards: PerTrajectory,
    group: PerTrajectory,
    *,
    highest: Positive = 1.0,
    floor: Share = 0.25,
    epsilon: NotNegative = 1e-6,
) -> PerTrajectory:
    """GRPO, with tasks weighted by how much of their reward the policy still misses (difficulty-weighted GRPO).

        A_i = z(S_i) · w / mean of w over the batch,   w = max(1 − mean(S) / highest, floor)

    Args:
        rewards: [N] all a trajectory earned.
        group: [N] which task it belongs to.
        highest: The reward of a perfect episode.
        floor: Least w, so that tasks nearly solved are not forgotten.
        epsilon: Added to deviations.

    Source: weighting GRPO's groups by measured difficulty, as in "Difficulty-Aware Group Policy Optimization" (2026)
    and its relatives, which differ in the weight; this one is ours.
    """
    weight = (1 - set_mean(rewards, group) / highest).clamp(min=floor)
    return normalised(rewards, group, epsilon=epsilon) * weight / weight.mean()
