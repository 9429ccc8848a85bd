"""Success of each training stage, compared with success at the start of the same stage.

`summary.json` stores the results under `stages`; `read_stage_results` returns them, also from the summaries of earlier
releases. Every page and every command takes its statement about a run from here.

Note:
    A run is as good as its last stage: reinforcement that loses half of the gain of a supervised stage is worse than
    its start, although success is far above that of the untrained policy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import StatisticsError, correlation
from typing import Any, Literal

Outcome = Literal["better", "worse", "unclear", "unknown"]
PHRASES: Mapping[Outcome, str] = {
    "better": "better than its start",
    "worse": "worse than its start",
    "unclear": "cannot be distinguished from its start",
    "unknown": "unknown: an evaluation has no scored episode",
}
Interval = tuple[float, float]
TaskOutcomes = Mapping[str, float]
"""By task id, the fraction of its scored episodes that succeeded."""


@dataclass(frozen=True, slots=True)
class SuccessDifference:
    """Difference of two success rates with its confidence interval, after training less before."""

    mean: float
    """Difference in [-1, 1]; NaN if an evaluation has no scored episode."""
    interval: Interval
    """95 % confidence interval, see `difference_interval`."""
    paired_tasks: int = 0
    """Number of tasks in both evaluations if they are paired; 0: the evaluations are independent samples."""

    @property
    def outcome(self) -> Outcome:
        """Return `better` or `worse` if the interval excludes 0; otherwise `unclear`, or `unknown` without a mean."""
        return classify_difference(self.mean, self.interval)


@dataclass(frozen=True, slots=True)
class StageResult:
    """Success rates at the start and at the end of a training stage."""

    name: str
    """Name of the stage."""
    before: Mapping[str, Any]
    """`success`, `interval` and `episodes` of the evaluation at the start of the stage."""
    after: Mapping[str, Any]
    """The same numbers at the end of the stage."""
    difference: SuccessDifference
    """Difference of the two success rates."""

    @property
    def outcome(self) -> Outcome:
        """Return the outcome of the stage: `better`, `worse`, `unclear` or `unknown` against its start."""
        return self.difference.outcome

    @property
    def formatted_rates(self) -> str:
        """Format success at both ends, such as `77 → 66 %`."""
        return f"{format_percent(self.before['success'])} → {format_percent(self.after['success'])} %"

    @property
    def formatted_outcome(self) -> str:
        """Format the outcome with its numbers, such as `worse than its start (-11 points, 95 % interval -17 to -5)`."""
        return PHRASES[self.outcome] + describe_difference(self.difference)

    @property
    def sentence(self) -> str:
        """Format one line, such as `reinforcement: 77 → 66 %, worse than its start (-11 points, 95 % interval …)`."""
        return f"{self.name}: {self.formatted_rates}, {self.formatted_outcome}"

    def to_json(self) -> dict[str, Any]:
        """Return the entry of `stages` in `summary.json`."""
        low, high = self.difference.interval
        difference = {
            "success": _plain(self.difference.mean),
            "interval": [_plain(low), _plain(high)],
            "paired_tasks": self.difference.paired_tasks,
        }
        ends = {"before": dict(self.before), "after": dict(self.after)}
        return {"name": self.name, **ends, "difference": difference, "outcome": self.outcome}


def compare_stage(
    name: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    outcomes: tuple[TaskOutcomes, TaskOutcomes] | None = None,
) -> StageResult:
    """Compare the evaluation at the end of a stage with the evaluation at its start.

    Args:
        before: An evaluation in the form of `Evaluation.to_json`.
        after: The same.
        outcomes: Task outcomes of both. If they share at least half of their tasks, the interval is of pairs.
    """
    return StageResult(name, numbers_of(before), numbers_of(after), compare_rates(before, after, outcomes))


def compare_rates(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    outcomes: tuple[TaskOutcomes, TaskOutcomes] | None = None,
) -> SuccessDifference:
    """Compute the difference of two success rates; see `compare_stage`."""
    if before["success"] is None or after["success"] is None:
        return SuccessDifference(math.nan, (math.nan, math.nan))
    first, second = outcomes or ({}, {})
    shared = sorted(first.keys() & second.keys())
    is_paired = 2 * len(shared) > max(len(first), len(second))
    r = _correlation([first[task] for task in shared], [second[task] for task in shared]) if is_paired else 0.0
    one, other = (float(before["success"]), _interval(before)), (float(after["success"]), _interval(after))
    return SuccessDifference(other[0] - one[0], difference_interval(one, other, r), len(shared) if is_paired else 0)


def difference_interval(
    before: tuple[float, Interval], after: tuple[float, Interval], correlation: float = 0.0
) -> Interval:
    """Compute the 95 % interval of `after - before` from the intervals of both rates.

        d = p2 - p1
        lower = d - sqrt((p2 - l2)^2 - 2 r (p2 - l2) (u1 - p1) + (u1 - p1)^2)
        upper = d + sqrt((u2 - p2)^2 - 2 r (u2 - p2) (p1 - l1) + (p1 - l1)^2)

    Args:
        before: (p1, (l1, u1)).
        after: (p2, (l2, u2)).
        correlation: r, the correlation of the outcomes of the same tasks; 0 for independent samples.

    Source: Newcombe 1998, "Improved confidence intervals for the difference between binomial proportions based on
        paired data", method 10 without its continuity correction; r = 0: Newcombe 1998, "Interval estimation for the
        difference between independent proportions", method 10.
    """
    (p1, (l1, u1)), (p2, (l2, u2)) = before, after
    lower = _combine(p2 - l2, u1 - p1, correlation)
    upper = _combine(u2 - p2, p1 - l1, correlation)
    return max(-1.0, p2 - p1 - lower), min(1.0, p2 - p1 + upper)


def classify_difference(mean: float, interval: Interval) -> Outcome:
    """Return the outcome that a difference and its interval support."""
    low, high = interval
    if math.isnan(mean):
        return "unknown"
    return "better" if low > 0 else "worse" if high < 0 else "unclear"


def read_stage_results(summary: Mapping[str, Any]) -> list[StageResult]:
    """Return the results of a summary, in the order of training.

    A summary of an earlier release has no results: its evaluations, or its `before` and `after`, are compared as
    independent samples.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: The summary has another shape.
    """
    stored = [stage for stage in summary.get("stages", ()) if "after" in stage]
    if stored:
        return [_stored(stage) for stage in stored]
    evaluations = list(summary.get("evaluations", {}).items())
    if len(evaluations) > 1:
        return [compare_stage(name, before, after) for (_, before), (name, after) in pairwise(evaluations)]
    if not evaluations and "before" in summary:
        return [compare_stage("training", summary["before"], summary["after"])]
    return []


def untrained_of(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first evaluation of a run, before any training; also of a summary of an earlier release."""
    first: Mapping[str, Any] = summary.get("untrained") or next(iter(summary["evaluations"].values()))
    return numbers_of(first)


def numbers_of(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return `success`, `interval` and `episodes` of an evaluation; success is None if no episode was scored.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: The evaluation has another shape.
    """
    success, episodes = evaluation["success"], evaluation.get("episodes")
    return {
        "success": None if success is None else float(success),
        "interval": list(_interval(evaluation)),
        "episodes": None if episodes is None else int(episodes),
    }


def last_evaluation(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the last evaluation of a run with all of its numbers."""
    last: Mapping[str, Any] = list(summary["evaluations"].values())[-1]
    return last


def describe_difference(difference: SuccessDifference) -> str:
    """Format a difference as ` (-11 points, 95 % interval -17 to -5, 200 tasks paired)`; empty if it is unknown."""
    low, high = difference.interval
    if math.isnan(difference.mean):
        return ""
    paired = f", {difference.paired_tasks} tasks paired" if difference.paired_tasks else ""
    interval = "unknown" if math.isnan(low) else f"{format_percent(low, '+')} to {format_percent(high, '+')}"
    return f" ({format_percent(difference.mean, '+')} points, 95 % interval {interval}{paired})"


def format_percent(rate: float | None, sign: str = "") -> str:
    """Return a rate in percent with at most one decimal.

    >>> format_percent(0.77), format_percent(0.745), format_percent(-0.11, "+"), format_percent(None)
    ('77', '74.5', '-11', 'unknown')
    """
    if rate is None or math.isnan(rate):
        return "unknown"
    return f"{round(100 * rate, 1) + 0.0:{sign}.1f}".removesuffix(".0")


def _stored(stage: Mapping[str, Any]) -> StageResult:
    difference = stage["difference"]
    low, high = (math.nan if end is None else float(end) for end in difference["interval"])
    mean = math.nan if difference["success"] is None else float(difference["success"])
    paired_tasks = int(difference["paired_tasks"])
    ends = numbers_of(stage["before"]), numbers_of(stage["after"])
    return StageResult(str(stage["name"]), *ends, SuccessDifference(mean, (low, high), paired_tasks))


def _interval(evaluation: Mapping[str, Any]) -> Interval:
    low, high = evaluation["interval"]
    return float(low), float(high)


def _correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Compute Pearson's r; 0 if one side is constant, which shows no correlation."""
    try:
        return correlation(first, second)
    except StatisticsError:
        return 0.0


def _combine(one: float, other: float, r: float) -> float:
    return math.sqrt(max(0.0, one * one - 2 * r * one * other + other * other))


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value
