"""Which turns learn from a reward, where a first attempt is not to move for it? Those behind it."""

from __future__ import annotations

from whetstone.algorithms.levels import PerTurn


def after_first_attempt(advantages: PerTurn, first_attempt: PerTurn) -> PerTurn:
    """Advantages of the turns behind the first answer; 0 up to it (SCoRe, stage one).

    What the second attempt earns would else reach the first through its return, and a first attempt that fails on
    purpose is the shortest way to a good second one.

    Args:
        advantages: [M] of any estimator.
        first_attempt: [M] 1 up to the first answer, 0 behind it.

    Source: Kumar et al. 2024, arXiv:2409.12917, §4.1, where the first attempt has the divergence alone; 0 is ours.
    """
    return advantages * (1 - first_attempt.to(advantages))
