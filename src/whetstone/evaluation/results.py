"""Evaluation results: success on held-out tasks with a confidence interval, and costs.

Note: Episodes that failed because of the infrastructure are not failures of the agent. They are excluded from every
rate, and counted.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from whetstone.evaluation.evaluation_metrics import (
    Calibration,
    compute_calibration,
    compute_pass_at_k,
    majority_answer,
    pass_hat_k,
    tool_productivity,
)
from whetstone.evaluation.intervals import Rate, clustered_interval, effective_number
from whetstone.failure_causes import count_failure_causes
from whetstone.rewards.answers.confidence import stated_confidence
from whetstone.rewards.answers.exact_match import normalize_answer
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.strict_json import to_plain_values
from whetstone.tool_calls import ToolStatistics, compute_tool_statistics
from whetstone.trajectory import Group, Trajectory

MOST_INVALID = 0.02
"""Maximum fraction of invalid episodes; above it an evaluation is not meaningful."""
_NOT_CHOSEN = "not_chosen"
_MOST_VALUES = 40
"""Maximum number of values of a tag in a breakdown; a tag with more (an ID) is left out."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Aggregate results of the episodes of one evaluation. A mean without values is NaN."""

    episodes: int
    """Number of episodes with a valid end reason."""
    success: float
    """Fraction of valid episodes that succeeded."""
    interval: tuple[float, float]
    """95 % confidence interval of success, clustered by task, since episodes of one task are correlated; see
    `clustered`."""
    kinds: dict[str, Rate]
    """Success by the `kind` tag of the tasks."""
    turns: float
    """Mean number of turns; likewise for the next two fields."""
    tool_calls: float
    action_tokens: float
    well_formed_calls: float | None
    """Fraction of calls that name an available tool with valid arguments; None without calls."""
    ended: dict[str, float]
    """Fraction of episodes by end reason, including invalid ones."""
    parts: dict[str, float]
    """Mean of each reward component."""
    pass_at: dict[str, float]
    """pass@k for k = 1, 2, 4, … up to the samples of a task."""
    invalid: int
    """Number of invalid episodes, which are excluded."""
    temperature: float
    """Sampling temperature."""
    tasks: int = 0
    """Number of tasks."""
    clustered_interval: tuple[float, float] = (math.nan, math.nan)
    """Same as `interval`, for readers of earlier releases; NaN without episodes."""
    pass_hat: dict[str, float] = field(default_factory=dict)
    """pass^k: the probability that all of k samples succeed."""
    majority: dict[str, float] = field(default_factory=dict)
    """maj@k: whether the most frequent answer among the first k is right; only for tasks with answers."""
    reward: float = math.nan
    """Mean outcome: avg@k, k being the samples of a task."""
    reward_interval: tuple[float, float] = (math.nan, math.nan)
    """95 % confidence interval of `reward`, clustered by task."""
    tool_productivity: float | None = None
    """Solved episodes over tool calls; None without calls."""
    tags: dict[str, dict[str, Rate]] = field(default_factory=dict)
    """Success by each tag of the tasks and its values."""
    failures: dict[str, float] = field(default_factory=dict)
    """Fraction of unsuccessful episodes by failure: end reason, or `wrong_answer` and others."""
    calibration: Calibration | None = None
    """Calibration of stated confidence; None without it."""
    cost: float = 0.0
    """Mean cost of calls as reported by tools."""
    incomplete: int = 0
    """Number of episodes without a reward component that others have; they are in no mean of it."""
    too_long: int = 0
    """Number of tasks left out because their prompt does not fit the model's context with an answer."""
    causes: dict[str, int] = field(default_factory=dict)
    """Why episodes were left out: the most frequent causes first, and the rest as `others`."""
    spent: dict[str, float] = field(default_factory=dict)
    """Mean cost per task, including rejected attempts: `sampled_tokens`, `tool_calls`, `environment_steps`."""
    tools: dict[str, ToolStatistics] = field(default_factory=dict)
    """Call statistics by tool, including episodes without a score."""
    members: dict[str, MemberResult] = field(default_factory=dict)
    """Result of each trained member of `policies`, if several play seats; all other fields are those of the first."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; NaN becomes None."""
        values: dict[str, Any] = to_plain_values(self)
        return values

    @property
    def standard_error(self) -> float:
        """Return the standard error of `success` that corresponds to `interval`; NaN without episodes."""
        low, high = self.clustered_interval
        return (high - low) / (2 * 1.96)

    @property
    def sound(self) -> bool:
        """Return whether at most `MOST_INVALID` of the episodes are invalid, so that the result is meaningful."""
        return self.invalid <= MOST_INVALID * max(1, self.episodes + self.invalid)


@dataclass(frozen=True, slots=True)
class MemberResult:
    """Success of a member of `policies` in its seat; scripts play the other seats."""

    seat: str
    """Seat of the member."""
    episodes: int
    """Number of valid episodes."""
    success: float
    """Fraction of valid episodes that succeeded."""
    interval: tuple[float, float]
    """95 % confidence interval of `success`, clustered by task."""
    reward: float
    """Mean outcome."""

    @classmethod
    def from_evaluation(cls, seat: str, result: Evaluation) -> MemberResult:
        """Extract the fields of a member's result from an evaluation.

        Args:
            seat: Seat of the member in the game.
            result: Evaluation of the member in this seat.
        """
        return cls(seat, result.episodes, result.success, result.interval, result.reward)


def success_rate(outcomes: Iterable[bool], tasks: Iterable[Hashable] | None = None) -> Rate:
    """Return the fraction of True with its 95 % interval; NaN in [0, 1] without outcomes.

    Args:
        outcomes: [N] whether each episode succeeded.
        tasks: [N] task of each episode; None: all are different.
    """
    results = list(outcomes)
    if not results:
        return Rate(0, math.nan, (0.0, 1.0))
    by_task: defaultdict[Hashable, list[bool]] = defaultdict(list)
    for outcome, task in zip(results, range(len(results)) if tasks is None else tasks, strict=True):
        by_task[task].append(outcome)
    return Rate(len(results), sum(results) / len(results), clustered_interval(list(by_task.values())))


def summarize_episodes(groups: Sequence[Group], *, temperature: float) -> Evaluation:
    """Compute the evaluation results of scored groups.

    Args:
        groups: Groups of episodes, one per task.
        temperature: Sampling temperature, which is stored in the result.
    """
    tried = groups
    groups = [
        replace(group, trajectories=tuple(t for t in group.trajectories if _NOT_CHOSEN not in t.marks))
        for group in groups
    ]
    everything = [trajectory for group in groups for trajectory in group.trajectories]
    valid = [trajectory for trajectory in everything if trajectory.score is not None]
    kinds: defaultdict[str, list[Group]] = defaultdict(list)
    for group in groups:
        kinds[group.task.tags.get("kind", "all")].append(group)
    overall = _rate_of(groups)
    calls = [call for trajectory in valid for call in trajectory.calls]
    by_task = _by_task(groups)
    values = [[t.score.value for t in row if t.score is not None] for row in by_task]
    parts, incomplete = _mean_parts(valid)
    productivity = tool_productivity([t.solved for t in valid], [len(t.calls) for t in valid])
    sure = [(confidence, t.solved) for t in valid if (confidence := stated_confidence(t)) is not None]
    return Evaluation(
        episodes=overall.episodes,
        success=overall.success,
        interval=overall.interval,
        kinds={kind: _rate_of(each) for kind, each in sorted(kinds.items())},
        turns=_mean(len(t.turns) for t in valid),
        tool_calls=_mean(len(t.calls) for t in valid),
        action_tokens=_mean(t.action_tokens for t in valid),
        well_formed_calls=_mean(call.well_formed for call in calls) if calls else None,
        ended=_shares(str(trajectory.ended) for trajectory in everything),
        parts=parts,
        pass_at=_over_tasks(by_task, compute_pass_at_k),
        invalid=len(everything) - len(valid),
        temperature=temperature,
        tasks=len(by_task),
        clustered_interval=overall.interval if overall.episodes else (math.nan, math.nan),
        pass_hat=_over_tasks(by_task, pass_hat_k),
        majority=_majorities(by_task),
        reward=_mean(value for row in values for value in row),
        reward_interval=clustered_interval(values),
        tool_productivity=None if math.isnan(productivity) else productivity,
        tags=_by_tags(groups),
        failures=_shares(_what_went_wrong(t) for t in valid if not t.solved),
        calibration=compute_calibration([confidence for confidence, _ in sure], [right for _, right in sure]),
        cost=_mean(sum(call.cost for call in t.calls) for t in valid) if valid else 0.0,
        incomplete=incomplete,
        too_long=sum(not group.trajectories for group in tried),
        causes=count_failure_causes(everything),
        spent={
            name: _mean(getattr(group.costs, name) for group in tried)
            for name in ("sampled_tokens", "tool_calls", "environment_steps")
        },
        tools=compute_tool_statistics(call for trajectory in everything for call in trajectory.calls),
    )


def _rate_of(groups: Iterable[Group]) -> Rate:
    scored = [(t.solved, group.task.id) for group in groups for t in group.trajectories if t.score is not None]
    return success_rate([solved for solved, _ in scored], [task for _, task in scored])


def effective_samples(groups: Iterable[Group]) -> float:
    """Return the `effective_number` of the scored episodes of groups."""
    by_task: defaultdict[str, list[bool]] = defaultdict(list)
    for group in groups:
        by_task[group.task.id] += [t.solved for t in group.trajectories if t.score is not None]
    return effective_number(list(by_task.values()))


def _by_task(groups: Sequence[Group]) -> list[list[Trajectory]]:
    """Return the valid episodes by task, with groups of the same task combined."""
    by_task: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for group in groups:
        by_task[group.task.id] += group.counted
    return [row for row in by_task.values() if row]


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return fmean(listed) if listed else math.nan


def _shares(names: Iterable[str]) -> dict[str, float]:
    counts = Counter(names)
    return {name: count / counts.total() for name, count in counts.most_common()}


def _what_went_wrong(trajectory: Trajectory) -> str:
    """Return the kind of failure of an episode: truncation, failed calls, or a wrong answer."""
    if trajectory.ended.cut_short or trajectory.marks:
        return str(trajectory.ended)
    if any(turn.message.malformed for turn in trajectory.turns[-1:]):
        return "malformed_call"
    calls = trajectory.calls
    if calls and all(call.outcome != "ok" for call in calls):
        return "no_call_worked"
    if not trajectory.final_text.strip() and not calls:
        return "empty_answer"
    return "wrong_answer"


def _mean_parts(trajectories: Sequence[Trajectory]) -> tuple[dict[str, float], int]:
    named: defaultdict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        for name, value in trajectory.score.parts.items() if trajectory.score else ():
            named[name].append(value)
    incomplete = sum(
        trajectory.score is not None and len(trajectory.score.parts) < len(named) for trajectory in trajectories
    )
    return {name: fmean(values) for name, values in named.items()}, incomplete


def _over_tasks(by_task: Sequence[Sequence[Trajectory]], of: Callable[[int, int, int], float]) -> dict[str, float]:
    """Compute the mean of a metric for k = 1, 2, 4, … over tasks with the full number of valid samples."""
    most = max(map(len, by_task), default=0)
    complete = [row for row in by_task if len(row) == most > 0]
    means, k = {}, 1
    while k <= most:
        means[str(k)] = fmean(of(most, sum(t.solved for t in row), k) for row in complete)
        k *= 2
    return means


def _majorities(by_task: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    most = max(map(len, by_task), default=0)
    complete = [row for row in by_task if len(row) == most > 1]
    means, k = {}, 2
    while k <= most and complete:
        means[str(k)] = fmean(_majority_is_right(row[:k]) for row in complete)
        k *= 2
    return means


def _majority_is_right(row: Sequence[Trajectory]) -> bool:
    answers = [None if (answer_text := final_answer(t)) is None else normalize_answer(answer_text) for t in row]
    chosen = majority_answer(answers)
    return chosen is not None and any(t.solved for t, answer in zip(row, answers, strict=True) if answer == chosen)


def _by_tags(groups: Sequence[Group]) -> dict[str, dict[str, Rate]]:
    by_tag: defaultdict[str, defaultdict[str, list[Group]]] = defaultdict(lambda: defaultdict(list))
    for group in groups:
        for tag, value in group.task.tags.items():
            by_tag[tag][str(value)].append(group)
    return {
        tag: {value: _rate_of(each) for value, each in sorted(values.items())}
        for tag, values in sorted(by_tag.items())
        if len(values) <= _MOST_VALUES
    }
