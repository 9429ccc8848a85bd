"""Reward shaping: the first of the six steps of credit assignment.

Each function returns the new rewards of its level: outcomes, process rewards, or token rewards.
"""

from whetstone.algorithms.shaping.gated import gated as gated, gated_sum as gated_sum
from whetstone.algorithms.shaping.kl_penalty import kl_penalty as kl_penalty
from whetstone.algorithms.shaping.overlong import overlong as overlong
from whetstone.algorithms.shaping.second_attempt_only import second_attempt_only as second_attempt_only
from whetstone.algorithms.shaping.self_correction import self_correction as self_correction

SHAPING = {
    "gated": gated,
    "kl_penalty": kl_penalty,
    "overlong": overlong,
    "second_attempt_only": second_attempt_only,
    "self_correction": self_correction,
}
