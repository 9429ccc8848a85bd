"""Rejection sampling: keeps distinct episodes above a reward threshold, at most a fixed number per task.

Note: Without a maximum per task, easy tasks dominate hard ones.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import LossOnly, PerTrajectory
from whetstone.bounded_types import Count


def rejection(
    rewards: PerTrajectory,
    group: PerTrajectory,
    action_keys: PerTrajectory,
    lengths: PerTrajectory,
    *,
    threshold: float = 1.0,
    per_task: Count = 4,
) -> LossOnly:
    """Keep trajectories that reach the threshold, without duplicates, at most `per_task` per task.

    Among equal rewards shorter ones are preferred, then earlier ones. With `objective: supervised` it is rejection
    fine-tuning.

    Args:
        rewards: [N] total reward per trajectory.
        group: [N] index of the task of each trajectory.
        action_keys: [N] identity of the actions; equal if and only if two trajectories have equal actions.
        lengths: [N] number of action tokens.
        threshold: Minimum reward.
        per_task: Maximum number of trajectories per task.

    Source: Yuan et al. 2023, arXiv:2308.01825 (rejection sampling fine-tuning); the bound and ties are additions.
    """
    weights = torch.zeros(len(rewards), dtype=torch.float64)
    scores, tasks, actions = rewards.tolist(), group.tolist(), action_keys.tolist()
    size = lengths.tolist()
    accepted: dict[int, set[int]] = {}
    for i in sorted(range(len(scores)), key=lambda i: (-scores[i], size[i], i)):
        task_actions = accepted.setdefault(tasks[i], set())
        if scores[i] >= threshold and actions[i] not in task_actions and len(task_actions) < per_task:
            task_actions.add(actions[i])
            weights[i] = 1.0
    return weights
