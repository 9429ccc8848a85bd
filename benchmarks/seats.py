"""Credit for several agents of one policy that takes no notice of which of them it was."""

from __future__ import annotations

import torch

from whetstone.algorithms.levels import PerTrajectory
from whetstone.algorithms.sets import normalised


def across(rewards: PerTrajectory) -> PerTrajectory:
    """Less the mean and by the deviation over all trajectories of all seats: what Dr. MAS warns of."""
    return normalised(rewards, torch.zeros(len(rewards), dtype=torch.long))
