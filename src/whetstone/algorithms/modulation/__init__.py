"""Advantages made over after all: the last of the six pieces of credit. Each works on any estimator's."""

from whetstone.algorithms.modulation.clip_cov import clip_cov, covariances
from whetstone.algorithms.modulation.entropy_aware import entropy_aware
from whetstone.algorithms.modulation.entropy_modulated import entropy_modulated
from whetstone.algorithms.modulation.high_entropy_turns import high_entropy_turns
from whetstone.algorithms.modulation.replay_band import replay_band
from whetstone.algorithms.modulation.second_moment import second_moment

MODULATION = {
    "clip_cov": clip_cov,
    "entropy_aware": entropy_aware,
    "entropy_modulated": entropy_modulated,
    "high_entropy_turns": high_entropy_turns,
    "replay_band": replay_band,
    "second_moment": second_moment,
}

__all__ = [
    "MODULATION",
    "clip_cov",
    "covariances",
    "entropy_aware",
    "entropy_modulated",
    "high_entropy_turns",
    "replay_band",
    "second_moment",
]
