"""Schedules of weights, as functions of the step only, so that a resumed run continues with the same values."""

from whetstone.algorithms.schedules.weight_schedules import (
    adaptive_weight as adaptive_weight,
    mixing_weight as mixing_weight,
    phase_weight as phase_weight,
    replay_weight as replay_weight,
)
