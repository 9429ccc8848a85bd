"""ReMax: the baseline is the reward of the greedy episode."""

from __future__ import annotations

from whetstone.algorithms.axes import PerTrajectory


def remax(rewards: PerTrajectory, greedy_rewards: PerTrajectory) -> PerTrajectory:
    """Compute the reward minus that of the greedy episode of the same task (ReMax).

        Aᵢ = Sᵢ − S_greedy

    Use it with few samples per task; it needs one greedy episode of each (`rollout.greedy_baseline`).

    Args:
        rewards: [N] total reward per trajectory.
        greedy_rewards: [N] reward of the greedy episode of the task; NaN if it failed, which gives 0.

    Source: Li et al. 2024, arXiv:2310.10505, algorithm 1.
    """
    return (rewards.double() - greedy_rewards.double()).nan_to_num(0.0)
