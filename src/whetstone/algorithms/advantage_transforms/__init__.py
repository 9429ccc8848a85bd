"""Advantages made over after all: the last of the six pieces of credit. Each works on any estimator's."""

from whetstone.algorithms.advantage_transforms.balanced import balance, famo2o
from whetstone.algorithms.advantage_transforms.behind_first_attempt import after_first_attempt
from whetstone.algorithms.advantage_transforms.clip_cov import clip_cov, covariances
from whetstone.algorithms.advantage_transforms.entropy_aware import entropy_aware
from whetstone.algorithms.advantage_transforms.entropy_modulated import entropy_modulated
from whetstone.algorithms.advantage_transforms.high_entropy_turns import high_entropy_turns
from whetstone.algorithms.advantage_transforms.replay_band import probability_band
from whetstone.algorithms.advantage_transforms.second_moment import m2po

ADVANTAGE_TRANSFORMS = {
    "after_first_attempt": after_first_attempt,
    "famo2o": famo2o,
    "clip_cov": clip_cov,
    "entropy_aware": entropy_aware,
    "entropy_modulated": entropy_modulated,
    "high_entropy_turns": high_entropy_turns,
    "probability_band": probability_band,
    "m2po": m2po,
}

__all__ = [
    "ADVANTAGE_TRANSFORMS",
    "after_first_attempt",
    "balance",
    "clip_cov",
    "covariances",
    "entropy_aware",
    "entropy_modulated",
    "famo2o",
    "high_entropy_turns",
    "m2po",
    "probability_band",
]
