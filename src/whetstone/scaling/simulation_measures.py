"""Statistics of a simulated run: time in each state, and the composition of each update.

Note:
    The first `skip` updates fill the pipeline. All counts start after them, including those of engines.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from whetstone.scaling.simulation_replica import SimulatedReplica
from whetstone.scaling.simulation_scenario import Scenario, Shares, SimulationSummary

_WAITS = ("engine", "tools", "tool_workers", "rewards", "reward_workers", "places", "failures")
_IDLE = 0.1
"""Fraction of the time: a learner that waits longer, concurrently with sampling, is not the bottleneck."""


class Measures:
    """Statistics of a simulated run, which `simulation` updates at every event."""

    def __init__(self, scenario: Scenario) -> None:
        self.of = scenario
        self.states: Counter[str] = Counter()
        self.at_work = 0
        self.phases: defaultdict[str, float] = defaultdict(float)
        self.waits: defaultdict[str, float] = defaultdict(float)
        self.placed = self.called = 0.0
        self.tokens = self.aged = 0.0
        self.ages: Counter[int] = Counter()
        self.steps: list[float] = []
        self.made = 0
        self._since = self._busy = self._batched = 0.0

    def count(self, state: str, more: int) -> None:
        """Add `more` episodes to a state: +1 when an episode enters it, −1 when it leaves."""
        self.states[state] += more

    def calls(self, more: int) -> None:
        """Add `more` running tool calls: +1 when a call starts, −1 when it ends."""
        self.at_work += more

    def pass_by(self, span: float, phase: str, placed: int, *, few: bool) -> None:
        """Add a time span in which no state changed.

        Args:
            span: Seconds.
            phase: Phase of the learner.
            placed: Number of occupied episode slots.
            few: Whether so few episodes of the update run that the wait is for stragglers.
        """
        self.phases[phase] += span
        self.placed += span * placed
        self.called += span * self.at_work
        if phase != "waiting":
            return
        if few:
            self.waits["stragglers"] += span
            return
        total = sum(self.states[state] for state in _WAITS)
        for state in _WAITS:
            if self.states[state]:
                self.waits[state] += span * self.states[state] / total

    def consume(self, version: int, start_version: int, episodes: Sequence[tuple[float, float]]) -> None:
        """Count a group that an update trains on.

        Args:
            version: Version of the weights before the update.
            start_version: Version of the weights at the group's admission.
            episodes: (tokens, sum of tokens times the version that sampled them) of each episode.
        """
        self.ages[version - start_version] += 1
        for tokens, by_version in episodes:
            self.tokens += tokens
            self.aged += tokens * version - by_version

    def advance(self, now: float, replicas: Sequence[SimulatedReplica]) -> None:
        """Count an update whose weights have been transferred; statistics are reset after the first `skip` updates."""
        self.made += 1
        if self.made > self.of.skip:
            self.steps.append(now - self._since)
        self._since = now
        if self.made == self.of.skip:
            self.phases, self.waits, self.ages = defaultdict(float), defaultdict(float), Counter()
            self.placed = self.called = self.tokens = self.aged = 0.0
            self._busy, self._batched = _sum_work(replicas, now)
        elif self.made == self.of.updates:
            busy, batched = _sum_work(replicas, now)
            self._busy, self._batched = busy - self._busy, batched - self._batched

    def summary(self, *, started: int, consumed: int, alive: int, counts: Mapping[str, int]) -> SimulationSummary:
        """Compute the summary of the run.

        Args:
            started: Number of admitted groups.
            consumed: Number of groups that were trained on.
            alive: Number of groups in progress or waiting at the end.
            counts: Numbers of restarts, lost turns and lost episodes.
        """
        of, seconds, updates = self.of, sum(self.steps), len(self.steps)
        waiting = {name: self.waits[name] / seconds for name in (*_WAITS, "stragglers") if self.waits[name]}
        lines = of.environment_workers or of.max_in_flight
        shares = Shares(
            learner=self.phases["learning"] / seconds,
            sampler=self._busy / (seconds * of.engine.replicas),
            sampler_batch=self._batched / (self._busy * of.engine.max_sequences) if self._busy else 0.0,
            environment=self.called / (seconds * lines),
            places=self.placed / (seconds * of.max_in_flight),
            transfer=self.phases["transfer"] / seconds,
        )
        groups = sum(self.ages.values())
        return SimulationSummary(
            seconds_per_update=seconds / updates,
            updates_per_hour=3600 * updates / seconds,
            episodes_per_hour=3600 * updates * of.groups_per_update * of.group_size / seconds,
            tokens_per_second=self.tokens / seconds,
            shares=shares,
            waiting=waiting,
            staleness={age: count / groups for age, count in sorted(self.ages.items())},
            staleness_mean=sum(age * count for age, count in self.ages.items()) / groups,
            token_staleness_mean=self.aged / self.tokens if self.tokens else 0.0,
            bottleneck=self._bottleneck(shares, waiting, seconds),
            started=started,
            consumed=consumed,
            alive=alive,
            restarts=counts.get("restarts", 0),
            lost_turns=counts.get("lost_turns", 0),
            lost_episodes=counts.get("lost_episodes", 0),
            seconds=seconds,
            steps=self.steps,
        )

    def _bottleneck(self, shares: Shares, waiting: Mapping[str, float], seconds: float) -> str:
        """Return the component that limits the throughput.

        If sampling and learning are concurrent, the learner is the bottleneck only if it hardly waits. If they take
        turns, it is the longest part of a step.
        """
        down = self.phases["down"] / seconds
        waits = {**waiting, "failures": waiting.get("failures", 0.0) + down}
        is_concurrent = not self.of.by_recipe and not self.of.take_turns
        if is_concurrent and sum(waits.values()) > _IDLE:
            return max(waits, key=lambda name: waits[name])
        own = {"learner": shares.learner, "transfer": shares.transfer, "between": self.phases["between"] / seconds}
        every = {**own, **waits}
        return max(every, key=lambda name: every[name])


def _sum_work(replicas: Sequence[SimulatedReplica], now: float) -> tuple[float, float]:
    """Return (busy seconds, sequences times busy seconds) of all replicas so far."""
    for replica in replicas:
        replica.catch_up(now)
    return sum(replica.busy for replica in replicas), sum(replica.batched for replica in replicas)
