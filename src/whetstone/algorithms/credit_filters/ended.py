"""Is an episode that a limit cut short worth learning from? It earned what it earned; its tokens may still mislead.

Easy to get wrong: an ending that is *invalid* (a server failed) is no ending of the policy's. Those leave before any
statistic, always; here only cut-short ones are at issue.
"""

from __future__ import annotations

from whetstone.algorithms.levels import BeforeBaseline, LossOnly, PerTrajectory


def overlong_filter(cut_short: PerTrajectory) -> LossOnly:
    """Takes episodes that a limit cut short out of the loss; they still count in the group's statistics.

    Args:
        cut_short: [N] not 0 where turns, tokens, context or time ran out.

    Source: Yu et al. 2025 (DAPO), arXiv:2503.14476, §3.4 (overlong filtering).
    """
    return (cut_short == 0).double()


def invalid_endings(cut_short: PerTrajectory) -> BeforeBaseline:
    """Takes episodes that a limit cut short out of everything, as if they had never been.

    Args:
        cut_short: [N] not 0 where turns, tokens, context or time ran out.

    Source: the `before_baseline` removal of unfinished rollouts, as in GRPO-RoC (rStar2-Agent), arXiv:2508.20722.
    """
    return (cut_short == 0).double()
