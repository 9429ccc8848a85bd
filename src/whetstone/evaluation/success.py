"""How good is an agent? Success on held-out tasks, with an interval that says how sure one can be, and what it took.

Easy to get wrong: episodes that failed for reasons of infrastructure are not failures of the agent. They are
left out of every rate, and counted.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from whetstone.causes import causes_of
from whetstone.evaluation.intervals import Rate, clustered, effective_number
from whetstone.evaluation.measures import Calibration, calibration, majority, pass_at_k, pass_hat_k, tool_productivity
from whetstone.plain_json import plain
from whetstone.rewards.answers.confidence import stated_confidence
from whetstone.rewards.answers.exact_match import normalized
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.tool_calls import ToolStatistics, tool_statistics
from whetstone.trajectory import Group, Trajectory

MOST_INVALID = 0.02
"""The share of episodes without a valid ending above which an evaluation says nothing."""
_NOT_CHOSEN = "not_chosen"
_MOST_VALUES = 40
"""Of a tag, in a breakdown; one with more (an id) is left out."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What many episodes came to. NaN stands for a mean of nothing."""

    episodes: int
    """Episodes with a valid ending."""
    success: float
    interval: tuple[float, float]
    """95 %, over tasks: several episodes of one task are alike; see `clustered`."""
    kinds: dict[str, Rate]
    """By the `kind` tag of the tasks."""
    turns: float
    """Mean number of turns; the same for the next two."""
    tool_calls: float
    action_tokens: float
    well_formed_calls: float | None
    """Share of calls that named a tool on offer with arguments it accepts; None where nothing was called."""
    ended: dict[str, float]
    """Share of episodes by end reason, invalid ones included."""
    parts: dict[str, float]
    """Mean of each reward component."""
    pass_at: dict[str, float]
    """pass@k for k = 1, 2, 4, … up to the samples of a task."""
    invalid: int
    """Episodes left out because they say nothing of the agent."""
    temperature: float
    tasks: int = 0
    clustered_interval: tuple[float, float] = (math.nan, math.nan)
    """Same as `interval`, for readers of earlier releases; NaN without episodes."""
    pass_hat: dict[str, float] = field(default_factory=dict)
    """pass^k: all of k samples succeed."""
    majority: dict[str, float] = field(default_factory=dict)
    """maj@k: the answer given most often among the first k is one that was right; for answers alone."""
    reward: float = math.nan
    """Mean outcome: avg@k, k being the samples of a task."""
    reward_interval: tuple[float, float] = (math.nan, math.nan)
    """Of `reward`, as `interval`."""
    tool_productivity: float | None = None
    """Solved episodes over tool calls; None where nothing was called."""
    tags: dict[str, dict[str, Rate]] = field(default_factory=dict)
    """Success by each tag of the tasks and its values."""
    failures: dict[str, float] = field(default_factory=dict)
    """Among episodes that did not succeed, the share by what went wrong: how they ended, and `wrong_answer`."""
    calibration: Calibration | None = None
    """Of stated confidence; None where none was stated."""
    cost: float = 0.0
    """Mean of what tools said their calls cost."""
    incomplete: int = 0
    """Episodes without a component that others have; they are in no mean of it."""
    too_long: int = 0
    """Tasks left out because their prompt leaves no room for an answer in the model's context."""
    causes: dict[str, int] = field(default_factory=dict)
    """Why episodes were left out: the most frequent causes first, and the rest as `others`."""
    spent: dict[str, float] = field(default_factory=dict)
    """On a task in the mean, tries that were not chosen too: `sampled_tokens`, `tool_calls`, `environment_steps`."""
    tools: dict[str, ToolStatistics] = field(default_factory=dict)
    """Calls of each tool, those of episodes without a score included."""

    def to_json(self) -> dict[str, Any]:
        """As plain values; None for a mean of nothing."""
        found: dict[str, Any] = plain(self)
        return found

    @property
    def standard_error(self) -> float:
        """Standard error of `success` that `interval` amounts to; NaN without episodes."""
        low, high = self.clustered_interval
        return (high - low) / (2 * 1.96)

    @property
    def sound(self) -> bool:
        """Whether few enough episodes were invalid for it to say something."""
        return self.invalid <= MOST_INVALID * max(1, self.episodes + self.invalid)


def rate(outcomes: Iterable[bool], tasks: Iterable[Hashable] | None = None) -> Rate:
    """Return the share of True with its 95 % interval; of nothing, NaN in [0, 1].

    Args:
        outcomes: [N] whether each episode succeeded.
        tasks: [N] the task of each episode; None: each is of another one.
    """
    results = list(outcomes)
    if not results:
        return Rate(0, math.nan, (0.0, 1.0))
    by_task: defaultdict[Hashable, list[bool]] = defaultdict(list)
    for outcome, task in zip(results, range(len(results)) if tasks is None else tasks, strict=True):
        by_task[task].append(outcome)
    return Rate(len(results), sum(results) / len(results), clustered(list(by_task.values())))


def evaluation_of(groups: Sequence[Group], *, temperature: float) -> Evaluation:
    """Evaluate the episodes in `groups`."""
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
    whole = _rate_of(groups)
    calls = [call for trajectory in valid for call in trajectory.calls]
    by_task = _by_task(groups)
    values = [[t.score.value for t in row if t.score is not None] for row in by_task]
    parts, incomplete = _mean_parts(valid)
    productivity = tool_productivity([t.solved for t in valid], [len(t.calls) for t in valid])
    sure = [(said, t.solved) for t in valid if (said := stated_confidence(t)) is not None]
    return Evaluation(
        episodes=whole.episodes,
        success=whole.success,
        interval=whole.interval,
        kinds={kind: _rate_of(each) for kind, each in sorted(kinds.items())},
        turns=_mean(len(t.turns) for t in valid),
        tool_calls=_mean(len(t.calls) for t in valid),
        action_tokens=_mean(t.action_tokens for t in valid),
        well_formed_calls=_mean(call.well_formed for call in calls) if calls else None,
        ended=_shares(str(trajectory.ended) for trajectory in everything),
        parts=parts,
        pass_at=_over_tasks(by_task, pass_at_k),
        invalid=len(everything) - len(valid),
        temperature=temperature,
        tasks=len(by_task),
        clustered_interval=whole.interval if whole.episodes else (math.nan, math.nan),
        pass_hat=_over_tasks(by_task, pass_hat_k),
        majority=_majorities(by_task),
        reward=_mean(value for row in values for value in row),
        reward_interval=clustered(values),
        tool_productivity=None if math.isnan(productivity) else productivity,
        tags=_by_tags(groups),
        failures=_shares(_what_went_wrong(t) for t in valid if not t.solved),
        calibration=calibration([said for said, _ in sure], [right for _, right in sure]),
        cost=_mean(sum(call.cost for call in t.calls) for t in valid) if valid else 0.0,
        incomplete=incomplete,
        too_long=sum(not group.trajectories for group in tried),
        causes=causes_of(everything),
        spent={
            name: _mean(getattr(group.costs, name) for group in tried)
            for name in ("sampled_tokens", "tool_calls", "environment_steps")
        },
        tools=tool_statistics(call for trajectory in everything for call in trajectory.calls),
    )


def _rate_of(groups: Iterable[Group]) -> Rate:
    scored = [(t.solved, group.task.id) for group in groups for t in group.trajectories if t.score is not None]
    return rate([solved for solved, _ in scored], [task for _, task in scored])


def effective_samples(groups: Iterable[Group]) -> float:
    """Return the `effective_number` of the scored episodes of groups."""
    by_task: defaultdict[str, list[bool]] = defaultdict(list)
    for group in groups:
        by_task[group.task.id] += [t.solved for t in group.trajectories if t.score is not None]
    return effective_number(list(by_task.values()))


def _by_task(groups: Sequence[Group]) -> list[list[Trajectory]]:
    """The valid episodes of each task, those of groups of the same task together."""
    found: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for group in groups:
        found[group.task.id] += group.counted
    return [row for row in found.values() if row]


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return fmean(listed) if listed else math.nan


def _shares(names: Iterable[str]) -> dict[str, float]:
    counts = Counter(names)
    return {name: count / counts.total() for name, count in counts.most_common()}


def _what_went_wrong(trajectory: Trajectory) -> str:
    """How an episode failed: what cut it short, a tool that never worked, or an answer that is wrong."""
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
    """For k = 1, 2, 4, …: the mean over tasks with the full number of valid samples."""
    most = max(map(len, by_task), default=0)
    complete = [row for row in by_task if len(row) == most > 0]
    found, k = {}, 1
    while k <= most:
        found[str(k)] = fmean(of(most, sum(t.solved for t in row), k) for row in complete)
        k *= 2
    return found


def _majorities(by_task: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    most = max(map(len, by_task), default=0)
    complete = [row for row in by_task if len(row) == most > 1]
    found, k = {}, 2
    while k <= most and complete:
        found[str(k)] = fmean(_majority_is_right(row[:k]) for row in complete)
        k *= 2
    return found


def _majority_is_right(row: Sequence[Trajectory]) -> bool:
    answers = [None if (said := final_answer(t)) is None else normalized(said) for t in row]
    chosen = majority(answers)
    return chosen is not None and any(t.solved for t, answer in zip(row, answers, strict=True) if answer == chosen)


def _by_tags(groups: Sequence[Group]) -> dict[str, dict[str, Rate]]:
    found: defaultdict[str, defaultdict[str, list[Group]]] = defaultdict(lambda: defaultdict(list))
    for group in groups:
        for tag, value in group.task.tags.items():
            found[tag][str(value)].append(group)
    return {
        tag: {value: _rate_of(each) for value, each in sorted(values.items())}
        for tag, values in sorted(found.items())
        if len(values) <= _MOST_VALUES
    }
