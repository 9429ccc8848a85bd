"""Trajectory filters: selection of the trajectories of a step to train on."""

from whetstone.rollout.trajectory_filters.balanced import Balanced as Balanced
from whetstone.rollout.trajectory_filters.pair_caps import PairCaps as PairCaps
from whetstone.rollout.trajectory_filters.resample_on_correct import ResampleOnCorrect as ResampleOnCorrect
from whetstone.rollout.trajectory_filters.rare_success import RareSuccesses as RareSuccesses

TRAJECTORY_FILTERS = {
    "balanced_outcomes": Balanced,
    "pair_caps": PairCaps,
    "resample_on_correct": ResampleOnCorrect,
    "rare_successes": RareSuccesses,
}
