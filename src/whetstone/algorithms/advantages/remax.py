"""Was it worth to try something? The baseline is what the policy gets when it tries nothing: its greedy episode."""

from __future__ import annotations

from whetstone.algorithms.levels import PerTrajectory


def remax(rewards: PerTrajectory, greedy_rewards: PerTrajectory) -> PerTrajectory:
    """Reward minus that of the greedy episode of the same task (ReMax).

        Aᵢ = Sᵢ − S_greedy

    Use it with few samples a task; it needs one greedy episode of each (`rollout.greedy_baseline`).

    Args:
        rewards: [N] all a trajectory earned.
        greedy_rewards: [N] what the greedy episode of its task earned; NaN where that failed, which gives 0.

    Source: Li et al. 2024, arXiv:2310.10505, algorithm 1.
    """
    return (rewards.double() - greedy_rewards.double()).nan_to_num(0.0)
