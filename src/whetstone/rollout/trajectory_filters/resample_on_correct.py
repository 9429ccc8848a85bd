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


def outcome_quotas(positive: int, negative: int, keep: int, *, min_counts: tuple[int, int] = (2, 2)) -> tuple[int, int]:
    """Return the numbers of successes and failures of a group to keep, proportional to their numbers in the group.

    Args:
        positive: Number of successes in the group.
        negative: Number of failures in the group.
        keep: Number of trajectories to keep in total.
        min_counts: Minimum numbers of successes and failures to keep, if the group has that many.

    Source: rStar2-Agent 2025, arXiv:2508.20722, and its code (`down_sample/roc.py`).
    """
    total = positive + negative
    few_positive, few_negative = min(min_counts[0], positive), min(min_counts[1], negative)
    some_negative = round(negative * keep / total)
    some_positive = keep - some_negative
    if some_negative <= few_negative:
        some_negative, some_positive = few_negative, keep - few_negative
    if some_positive <= few_positive:
        some_positive, some_negative = few_positive, keep - few_positive
    return some_positive, some_negative


def format_penalty(trajectory: Trajectory, *, answer: str = "") -> float:
    """Compute the penalty of a trajectory: fraction of failed calls, 0.5 without a call, plus a format penalty.

    The format penalty is 1 without an answer, else the number of further answers divided by the number of turns, at
    most 1.

    Args:
        trajectory: Trajectory of the policy.
        answer: Regular expression of an answer; empty: a turn without a call is an answer.
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
    """Keeps `keep` trajectories of each group: the successes with the lowest penalty, the first failures (GRPO-RoC).

    A group of at most that size is unchanged. A group with equal rewards is removed.

    Source: rStar2-Agent 2025, arXiv:2508.20722, and its code.
    """

    group_size: int
    keep: int = 0
    """Number of trajectories kept per group; 0: half of `group_size`."""
    min_successes: int = 2
    """Minimum number of successes that are kept, if the group has that many."""
    min_failures: int = 2
    """Minimum number of failures that are kept, if the group has that many."""
    answer: str = ""
    """Regular expression of an answer in a turn; empty: a turn without a call is an answer."""

    def __post_init__(self) -> None:
        if self.keep > self.group_size:
            raise OptionError("keep", f"must be at most rollout.group_size ({self.group_size}), got {self.keep}")

    def __call__(self, groups: Sequence[Group], draw: Random, /) -> Sequence[Group]:
        """Mark the trajectories of a step that are not trained; see `TrajectoryFilter.__call__`."""
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
            len(positive), len(negative), keep, min_counts=(self.min_successes, self.min_failures)
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
