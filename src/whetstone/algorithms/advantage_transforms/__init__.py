"""Advantage transforms: the last of the six steps of credit assignment. Each works with any estimator."""

from whetstone.algorithms.advantage_transforms.famo2o import (
    balance_coefficient as balance_coefficient,
    famo2o as famo2o,
)
from whetstone.algorithms.advantage_transforms.after_first_attempt import after_first_attempt as after_first_attempt
from whetstone.algorithms.advantage_transforms.clip_cov import clip_cov as clip_cov, covariances as covariances
from whetstone.algorithms.advantage_transforms.duration_weighted import duration_weighted as duration_weighted
from whetstone.algorithms.advantage_transforms.entropy_aware import entropy_aware as entropy_aware
from whetstone.algorithms.advantage_transforms.entropy_modulated import entropy_modulated as entropy_modulated
from whetstone.algorithms.advantage_transforms.high_entropy_turns import high_entropy_turns as high_entropy_turns
from whetstone.algorithms.advantage_transforms.probability_band import probability_band as probability_band
from whetstone.algorithms.advantage_transforms.m2po import m2po as m2po

ADVANTAGE_TRANSFORMS = {
    "after_first_attempt": after_first_attempt,
    "famo2o": famo2o,
    "clip_cov": clip_cov,
    "duration_weighted": duration_weighted,
    "entropy_aware": entropy_aware,
    "entropy_modulated": entropy_modulated,
    "high_entropy_turns": high_entropy_turns,
    "probability_band": probability_band,
    "m2po": m2po,
}
