"""Which trajectories of a step are learned from."""

from whetstone.rollout.trajectory_filters.balanced import Balanced
from whetstone.rollout.trajectory_filters.pair_caps import PairCaps
from whetstone.rollout.trajectory_filters.resample_on_correct import ResampleOnCorrect
from whetstone.rollout.trajectory_filters.surprising import Surprising

TRAJECTORY_FILTERS = {
    "balanced_outcomes": Balanced,
    "pair_caps": PairCaps,
    "resample_on_correct": ResampleOnCorrect,
    "rare_successes": Surprising,
}

__all__ = ["TRAJECTORY_FILTERS", "Balanced", "PairCaps", "ResampleOnCorrect", "Surprising"]
