"""What is paid while a first attempt is only to stay as it is? What comes behind it."""

from __future__ import annotations

from whetstone.algorithms.levels import PerTurn


def second_attempt_only(process_rewards: PerTurn, first_attempt: PerTurn) -> PerTurn:
    """Process rewards without those of the first attempt (SCoRe, stage one).

        r_t ← 0 up to the first answer;   those behind it stay

    Args:
        process_rewards: [M] of each turn.
        first_attempt: [M] 1 up to the first answer, 0 behind it.

    Source: Kumar et al. 2024, arXiv:2409.12917, §4.1: the objective of stage one is the second attempt's reward.
    """
    return process_rewards.double() * (1 - first_attempt.double())
