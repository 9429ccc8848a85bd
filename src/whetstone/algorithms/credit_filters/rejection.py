"""What is worth imitating of one's own? Episodes that earned enough, each once, and not too many of one task.

Easy to get wrong: without a bound easy tasks crowd out hard ones.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.levels import LossOnly, PerTrajectory
from whetstone.ranges import Count


def rejection(
    rewards: PerTrajectory,
    group: PerTrajectory,
    action_keys: PerTrajectory,
    lengths: PerTrajectory,
    *,
    threshold: float = 1.0,
    per_task: Count = 4,
) -> LossOnly:
    """Keeps trajectories that reach the threshold, without duplicates, at most so many of a task.

    Of equally good ones the shorter stay, then the earlier. With `objective: supervised` it is rejection fine-tuning.

    Args:
        rewards: [N] all a trajectory earned.
        group: [N] which task it belongs to.
        action_keys: [N] equal exactly where two did the same.
        lengths: [N] action tokens.
        threshold: θ.
        per_task: Most kept of one task.

    Source: Yuan et al. 2023, arXiv:2308.01825 (rejection sampling fine-tuning); the bound and ties are ours.
    """
    found = torch.zeros(len(rewards), dtype=torch.float64)
    scores, tasks, actions = rewards.tolist(), group.tolist(), action_keys.tolist()
    size = lengths.tolist()
    kept: dict[int, set[int]] = {}
    for i in sorted(range(len(scores)), key=lambda i: (-scores[i], size[i], i)):
        held = kept.setdefault(tasks[i], set())
        if scores[i] >= threshold and actions[i] not in held and len(held) < per_task:
            held.add(actions[i])
            found[i] = 1.0
    return found
