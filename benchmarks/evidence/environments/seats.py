"""Advantages for several agents of one policy, normalized over all agents together."""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import PerTrajectory
from whetstone.algorithms.group_statistics import normalize_in_sets


def across(rewards: PerTrajectory) -> PerTrajectory:
    """Normalize by mean and deviation over all trajectories of all agents, which Dr. MAS advises against."""
    return normalize_in_sets(rewards, torch.zeros(len(rewards), dtype=torch.long))
