"""Filters of truncated episodes: excludes episodes that reached a limit (overlong filtering).

Note: Episodes with an *invalid* end reason (a server failed) are not handled here. They are always excluded before
any statistic.
"""

from __future__ import annotations

from whetstone.algorithms.axes import BeforeBaseline, LossOnly, PerTrajectory


def overlong_filter(cut_short: PerTrajectory) -> LossOnly:
    """Exclude truncated episodes from the loss; they still count in the group's statistics.

    Args:
        cut_short: [N] nonzero if the limit of turns, tokens, context or time was reached.

    Source: Yu et al. 2025 (DAPO), arXiv:2503.14476, §3.4 (overlong filtering).
    """
    return (cut_short == 0).double()


def invalid_endings(cut_short: PerTrajectory) -> BeforeBaseline:
    """Exclude truncated episodes from the loss and from all statistics.

    Args:
        cut_short: [N] nonzero if the limit of turns, tokens, context or time was reached.

    Source: the `before_baseline` removal of unfinished rollouts, as in GRPO-RoC (rStar2-Agent), arXiv:2508.20722.
    """
    return (cut_short == 0).double()
