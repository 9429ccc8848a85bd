"""How good is an agent? Success on held-out tasks, with an interval that says how sure one can be.

Easy to get wrong: episodes that failed for reasons of infrastructure are not failures of the agent. They are
left out of every rate, and counted.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from scipy.stats import binomtest

from whetstone.trajectory import Group, Trajectory


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of episodes that succeeded."""

    episodes: int
    success: float
    """In [0, 1]; NaN for no episodes."""
    interval: tuple[float, float]
    """The 95 % Wilson score interval."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What many episodes came to."""

    episodes: int
    """Episodes with a valid ending."""
    success: float
    interval: tuple[float, float]
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

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def rate(outcomes: Iterable[bool]) -> Rate:
    """The share of True with its 95 % Wilson interval; of nothing, NaN in [0, 1].

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    results = list(outcomes)
    if not results:
        return Rate(0, math.nan, (0.0, 1.0))
    interval = binomtest(sum(results), len(results)).proportion_ci(0.95, method="wilson")
    return Rate(len(results), sum(results) / len(results), (float(interval.low), float(interval.high)))


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """The chance that at least one of `k` samples drawn from `samples`, `solved` of them right, is right.

        1 − C(n − c, k) / C(n, k) = 1 − Π_{i = n−c+1 … n} (1 − k / i)

    1 where fewer than k samples are wrong.

    Raises:
        ValueError: k is larger than the number of samples.

    Source: Chen et al. 2021, arXiv:2107.03374, eq. 1.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k is between 1 and the number of samples ({samples}), got {k}")
    if samples - solved < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(samples - solved + 1, samples + 1))


def evaluation_of(groups: Sequence[Group], *, temperature: float) -> Evaluation:
    """What the episodes in `groups` came to."""
    everything = [trajectory for group in groups for trajectory in group.trajectories]
    valid = [trajectory for trajectory in everything if trajectory.score is not None]
    kinds: defaultdict[str, list[bool]] = defaultdict(list)
    for group in groups:
        kinds[group.task.tags.get("kind", "all")] += [t.solved for t in group.trajectories if t.score is not None]
    whole = rate(t.solved for t in valid)
    calls = [call for trajectory in valid for call in trajectory.calls]
    return Evaluation(
        episodes=whole.episodes,
        success=whole.success,
        interval=whole.interval,
        kinds={kind: rate(outcomes) for kind, outcomes in sorted(kinds.items())},
        turns=_mean(len(t.turns) for t in valid),
        tool_calls=_mean(len(t.calls) for t in valid),
        action_tokens=_mean(t.action_tokens for t in valid),
        well_formed_calls=_mean(call.well_formed for call in calls) if calls else None,
        ended=_shares(everything),
        parts=_mean_parts(valid),
        pass_at=_pass_at(groups),
        invalid=len(everything) - len(valid),
        temperature=temperature,
    )


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return fmean(listed) if listed else math.nan


def _shares(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    counts = Counter(str(trajectory.ended) for trajectory in trajectories)
    return {reason: count / len(trajectories) for reason, count in counts.most_common()}


def _mean_parts(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    named: defaultdict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        for name, value in trajectory.score.parts.items() if trajectory.score else ():
            named[name].append(value)
    return {name: fmean(values) for name, values in named.items()}


def _pass_at(groups: Sequence[Group]) -> dict[str, float]:
    """Over tasks with the full number of valid samples."""
    most = max((len(group.counted) for group in groups), default=0)
    complete = [group for group in groups if len(group.counted) == most > 0]
    found, k = {}, 1
    while k <= most:
        found[str(k)] = fmean(pass_at_k(most, sum(t.solved for t in g.counted), k) for g in complete)
        k *= 2
    return found
