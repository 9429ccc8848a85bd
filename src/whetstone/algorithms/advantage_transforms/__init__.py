"""Advantages made over after all: the last of the six pieces of credit. Each works on any estimator's."""

from whetstone.algorithms.advantage_transforms.balanced import balance, balanced
from whetstone.algorithms.advantage_transforms.behind_first_attempt import behind_first_attempt
from whetstone.algorithms.advantage_transforms.clip_cov import clip_cov, covariances
from whetstone.algorithms.advantage_transforms.entropy_aware import entropy_aware
from whetstone.algorithms.advantage_transforms.entropy_modulated import entropy_modulated
from whetstone.algorithms.advantage_transforms.high_entropy_turns import high_entropy_turns
from whetstone.algorithms.advantage_transforms.replay_band import replay_band
from whetstone.algorithms.advantage_transforms.second_moment import second_moment

ADVANTAGE_TRANSFORMS = {
    "behind_first_attempt": behind_first_attempt,
    "balanced": balanced,
    "clip_cov": clip_cov,
    "entropy_aware": entropy_aware,
    "entropy_modulated": entropy_modulated,
    "high_entropy_turns": high_entropy_turns,
    "replay_band": replay_band,
    "second_moment": second_moment,
}

__all__ = [
    "ADVANTAGE_TRANSFORMS",
    "balance",
    "balanced",
    "behind_first_attempt",
    "clip_cov",
    "covariances",
    "entropy_aware",
    "entropy_modulated",
    "high_entropy_turns",
    "replay_band",
    "second_moment",
]
