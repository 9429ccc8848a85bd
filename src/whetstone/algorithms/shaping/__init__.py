"""Rewards made over before anything is computed from them: the first of the six pieces of credit.

Each returns what takes the place of the rewards of its level: outcomes, process rewards, or token rewards.
"""

from whetstone.algorithms.shaping.gated import gated, gated_sum
from whetstone.algorithms.shaping.kl_penalty import kl_penalty
from whetstone.algorithms.shaping.overlong import overlong
from whetstone.algorithms.shaping.second_attempt_alone import second_attempt_only
from whetstone.algorithms.shaping.self_correction import self_correction

SHAPING = {
    "gated": gated,
    "kl_penalty": kl_penalty,
    "overlong": overlong,
    "second_attempt_only": second_attempt_only,
    "self_correction": self_correction,
}

__all__ = ["SHAPING", "gated", "gated_sum", "kl_penalty", "overlong", "second_attempt_only", "self_correction"]
