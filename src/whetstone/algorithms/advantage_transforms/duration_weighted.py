"""Duration weights: slow turns count as much per second as fast ones (reinforcement learning for ML engineering).

Note:
    Workers that play for a fixed time and repeat their actions finish more fast episodes than slow ones. Without the
    weight, the policy drifts to actions that are fast and poor.
"""

from __future__ import annotations

from whetstone.algorithms.axes import PerTurn
from whetstone.bounded_types import Positive


def duration_weighted(advantages: PerTurn, turn_seconds: PerTurn, *, max_ratio: Positive = 20.0) -> PerTurn:
    """Multiply advantages by the duration of the turn over the mean duration.

        A'_m = A_m · min(Δt_m / mean(Δt), max_ratio)

    Unchanged if no duration was measured (all are 0). Use it only if updates do not wait for the slowest episodes, so
    that slow ones are missing in proportion to their duration. If all sampled episodes are trained, as by default, they
    have the frequencies of the policy, and the weight distorts the gradient: uncentered rewards favor slow actions even
    if they are worse, and of three or more actions the best can lose probability at first.

    Args:
        advantages: [M] of any estimator.
        turn_seconds: [M] seconds of the turn, at least 0.
        max_ratio: Maximum weight, so that one blocked call does not decide an update.

    Source: Reinforcement Learning for Machine Learning Engineering Agents 2025, arXiv:2509.01684; the bound is an
        addition.
    """
    turn_seconds, advantages = turn_seconds.double(), advantages.double()
    if not bool(turn_seconds.any()):
        return advantages
    return advantages * (turn_seconds / turn_seconds.mean()).clamp(max=max_ratio)
