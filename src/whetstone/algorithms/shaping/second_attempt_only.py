"""Reward shaping that keeps only the rewards of the second attempt (SCoRe, stage one)."""

from __future__ import annotations

from whetstone.algorithms.axes import PerTurn


def second_attempt_only(process_rewards: PerTurn, first_attempt: PerTurn) -> PerTurn:
    """Set the process rewards of the first attempt to 0 (SCoRe, stage one).

        r_t ← 0 up to the first answer;   later ones are unchanged

    Args:
        process_rewards: [M] reward of each turn.
        first_attempt: [M] 1 up to the first answer, 0 after it.

    Source: Kumar et al. 2024, arXiv:2409.12917, §4.1: the objective of stage one is the second attempt's reward.
    """
    return process_rewards.double() * (1 - first_attempt.double())
