"""Which trajectories of a step are learned from."""

from whetstone.rollout.selections.balanced import Balanced
from whetstone.rollout.selections.pair_caps import PairCaps
from whetstone.rollout.selections.resample_on_correct import ResampleOnCorrect
from whetstone.rollout.selections.surprising import Surprising

SELECTIONS = {
    "balanced": Balanced,
    "pair_caps": PairCaps,
    "resample_on_correct": ResampleOnCorrect,
    "surprising": Surprising,
}

__all__ = ["SELECTIONS", "Balanced", "PairCaps", "ResampleOnCorrect", "Surprising"]
