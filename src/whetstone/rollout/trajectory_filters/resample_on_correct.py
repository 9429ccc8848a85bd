"""Trajectory filter of GRPO-RoC: from twice as many episodes, the first failures and the cleanest successes.

Note:
    The two quotas are rounded, and must still add up. The remainder goes to the successes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from whetstone.plugins import OptionError
from whetstone.trajectory import Group, RemovalScope, Trajectory


def outcome_quotas(positive: int, negative: int, keep: int, *, least: tuple[int, int] = (2, 2)) -> tuple[int, int]:
    """Return (successes, failures) to keep of a group, in its proportion, but at least `least` of either.

    Source: rStar2-Agent 2025, arXiv:2508.20722, and its code (`down_sample/roc.py`).
    """
    total = positive + negative
    few_positive, few_negative = min(least[0], positive), min(least[1], negative)
    some_negative = round(negative * keep / total)
    some_positive = keep - some_negative
    if some_negative <= few_negative:
        some_negative, some_positive = few_negative, keep - few_negative
    if some_positive <= few_positive:
        some_positive, some_negative = few_positive, keep - few_positive
    return some_positive, some_negative


def format_penalty(trajectory: Trajectory, *, answer: str = "") -> float:
    """Return the penalty of a trajectory: the fraction of failed calls, 0.5 without any, plus a format penalty.

    Format: 1 without an answer; else further answers over turns, at most 1.

    Args:
        answer: A pattern for an answer; empty: a last turn without a call is one.
    """
    calls = trajectory.calls
    errors = sum(call.outcome != "ok" for call in calls) / len(calls) if calls else 0.5
    turns = [turn for turn in trajectory.turns if not turn.aside]
    if not turns:
        return errors + 1
    if answer:
        answers = sum(len(re.findall(answer, turn.message.text)) for turn in turns)
    else:
        answers = sum(not turn.message.tool_calls and not turn.message.malformed for turn in turns)
    return errors + (1.0 if not answers else min((answers - 1) / len(turns), 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResampleOnCorrect:
    """Keeps `keep` of each group: the cleanest successes, and the first failures (GRPO-RoC).

    A group of at most that size is unchanged, which is GRPO; one with equal rewards is removed.

    Source: rStar2-Agent 2025, arXiv:2508.20722, and its code.
    """

    group_size: int
    keep: int = 0
    """Number of trajectories kept per group; 0: half of it."""
    min_successes: int = 2
    """Minimum number of successes that are kept, if available."""
    min_failures: int = 2
    """Minimum number of failures that are kept, if available."""
    answer: str = ""
    """A pattern for an answer in a turn; empty: a turn without a call."""

    def __post_init__(self) -> None:
        if self.keep > self.group_size:
            raise OptionError("keep", f"must be at most rollout.group_size ({self.group_size}), got {self.keep}")

    def __call__(self, groups: Sequence[Group], draw: Random, /) -> Sequence[Group]:
        """See `TrajectoryFilter`."""
        return [self._of(group) for group in groups]

    def _of(self, group: Group) -> Group:
        counted = group.counted
        keep = self.keep or self.group_size // 2
        if len(set(group.rewards)) <= 1:
            return _without(group, {t.id for t in counted})
        if len(counted) <= keep:
            return group
        positive = [t for t in counted if t.score is not None and t.score.value > 0]
        negative = [t for t in counted if t.score is not None and t.score.value <= 0]
        some_positive, some_negative = outcome_quotas(
            len(positive), len(negative), keep, least=(self.min_successes, self.min_failures)
        )
        cleanest = sorted(positive, key=lambda t: format_penalty(t, answer=self.answer))
        left = cleanest[some_positive:] + negative[some_negative:]
        return _without(group, {t.id for t in left})


def _without(group: Group, ids: set[str]) -> Group:
    return replace(
        group,
        trajectories=tuple(
            replace(t, removal=RemovalScope.BEFORE_BASELINE) if t.id in ids else t for t in group.trajectories
        ),
    )
