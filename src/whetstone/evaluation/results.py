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
    success_by_step,
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
    selection: dict[str, float] = field(default_factory=dict)
    """Quality of the selection among attempts, see `summarize_selection`; empty if nothing was selected."""
    tools: dict[str, ToolStatistics] = field(default_factory=dict)
    """Call statistics by tool, including episodes without a score."""
    members: dict[str, MemberResult] = field(default_factory=dict)
    """Result of each trained member of `policies`, if several play seats; all other fields are those of the first."""
    seats: dict[str, MemberResult] = field(default_factory=dict)
    """Result of the agent in each seat of a game, if it plays all of them against an opponent (`evaluate
    --opponent`)."""
    success_by_turn: dict[str, float] = field(default_factory=dict)
    """Fraction of episodes solved within k turns, for each k; empty if no episode has two turns."""
    success_by_attempt: dict[str, float] = field(default_factory=dict)
    """Fraction of episodes solved within k answer attempts; empty if no episode has two attempts."""
    first_answer_tokens: float = math.nan
    """Mean number of sampled tokens up to the end of the first answer, over episodes with an answer."""

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
    """Success in one seat of a game: of a member of `policies` against scripts, or of an agent against an opponent."""

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
    reward_interval: tuple[float, float] = (math.nan, math.nan)
    """95 % confidence interval of `reward`, clustered by task."""

    @classmethod
    def from_evaluation(cls, seat: str, result: Evaluation) -> MemberResult:
        """Extract the fields of a member's result from an evaluation.

        Args:
            seat: Seat of the member in the game.
            result: Evaluation of the member in this seat.
        """
        return cls(seat, result.episodes, result.success, result.interval, result.reward, result.reward_interval)


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
    solved = [t.solved for t in valid]
    productivity = tool_productivity(solved, [len(t.calls) for t in valid])
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
        selection=summarize_selection(tried),
        tools=compute_tool_statistics(call for trajectory in everything for call in trajectory.calls),
        success_by_turn=success_by_step([sum(not turn.aside for turn in t.turns) for t in valid], solved),
        success_by_attempt=success_by_step([len(_find_answers(t)) for t in valid], solved),
        first_answer_tokens=_mean(
            sum(len(turn.action) for turn in t.turns[: answers[0] + 1]) for t in valid if (answers := _find_answers(t))
        ),
    )


def summarize_selection(groups: Sequence[Group]) -> dict[str, float]:
    """Compute how well one of several independent attempts per task was selected, by a verifier or by votes.

        one_sample   mean success of all attempts, that is, of one sample without a selection
        gain         success of the selected attempts − one_sample
        rank_at_1    success of the selected attempts of tasks with right and wrong attempts; absent without such tasks

    Attempts without a score are left out, as are groups whose attempts share turns. The result is empty if no attempt
    was rejected.

    Source: ToolComp 2025, arXiv:2501.01290, §4 (rank@1); Cobbe et al. 2021, arXiv:2110.14168.
    """
    rows = [
        [(_NOT_CHOSEN not in t.marks, t.solved) for t in group.trajectories if t.score is not None]
        for group in groups
        if any(_NOT_CHOSEN in t.marks for t in group.trajectories) and not any(t.parent for t in group.trajectories)
    ]
    rows = [row for row in rows if any(selected for selected, _ in row)]
    if not rows:
        return {}
    chosen = [next(solved for selected, solved in row if selected) for row in rows]
    one_sample = _mean(_mean(solved for _, solved in row) for row in rows)
    ranked = [right for right, row in zip(chosen, rows, strict=True) if len({solved for _, solved in row}) == 2]
    result = {"one_sample": one_sample, "gain": _mean(chosen) - one_sample}
    return result | ({"rank_at_1": _mean(ranked)} if ranked else {})


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


def _find_answers(trajectory: Trajectory) -> list[int]:
    """Return the indices of the answers: turns without a call; of the last turn if a call ended the episode."""
    answers = [index for index, turn in enumerate(trajectory.turns) if turn.is_answer]
    ends_by_call = trajectory.turns and not trajectory.ended.cut_short
    return answers or ([len(trajectory.turns) - 1] if ends_by_call else [])


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
