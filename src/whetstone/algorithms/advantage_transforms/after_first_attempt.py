"""Masks the first attempt: only turns after it receive advantages (SCoRe, stage one)."""

from __future__ import annotations

from whetstone.algorithms.axes import PerTurn


def after_first_attempt(advantages: PerTurn, first_attempt: PerTurn) -> PerTurn:
    """Set the advantages of turns up to the first answer to 0 (SCoRe, stage one).

    Otherwise the reward of the second attempt would reach the first through its return, and a first attempt that
    fails on purpose would be the shortest way to a good second one.

    Args:
        advantages: [M] of any estimator.
        first_attempt: [M] 1 up to the first answer, 0 after it.

    Source: Kumar et al. 2024, arXiv:2409.12917, §4.1. There the
    first attempt is trained by the divergence only; 0 is our choice.
    """
    return advantages * (1 - first_attempt.to(advantages))
