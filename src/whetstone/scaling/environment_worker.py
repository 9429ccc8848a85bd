"""Environment worker: plays groups with the recipe's environments, tools, chat and method; its engine is remote.

    work → a group, many episodes at once → turns as they finish, then the group → the caller

Note:
    The record of a run is in another process. A worker continues after the turns that it receives and reports each new
    one. If it dies, another worker continues after the reported turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from whetstone.assembly.assembly import RunComponents
from whetstone.rewards import Reward
from whetstone.rewards.judge_usage import judge_metrics
from whetstone.rollout import Collector
from whetstone.scaling.protocol import EpisodeReset, Event, Finished, SlotFree, TurnFinished, Work, WorkerStatus
from whetstone.scaling.replicated_engine import ReplicatedEngine
from whetstone.trajectory import Turn
from whetstone.user_code import describe_exception

_WAITS_TOLD = 5


@dataclass(frozen=True, slots=True)
class _GroupReports:
    """Recorded turns of the episodes of one group, and the queue of its events."""

    played: Mapping[str, Sequence[Turn]]
    events: asyncio.Queue[Event]


_GROUP_REPORTS: ContextVar[_GroupReports] = ContextVar("_OF_THIS_GROUP")
"""Context variable that is set when a group starts; the group's episodes inherit it as child tasks."""


class _RemoteRecord:
    """Record of turns that reports to another process; implements `EpisodeRecord` in a worker."""

    def played(self, episode: str) -> tuple[Turn, ...]:
        """Return the recorded turns of an episode, which were sent with the group."""
        return tuple(_GROUP_REPORTS.get().played.get(episode, ()))

    def add(self, episode: str, turn: Turn) -> None:
        """Report a finished turn as an event of the group."""
        _GROUP_REPORTS.get().events.put_nowait(TurnFinished(episode, turn))

    def drop(self, episode: str) -> None:
        """Report that the turns of an episode are void."""
        _GROUP_REPORTS.get().events.put_nowait(EpisodeReset(episode))


def _tell_of_a_place() -> None:
    _GROUP_REPORTS.get().events.put_nowait(SlotFree())


class EnvironmentWorker:
    """Plays groups of a recipe in a worker's process; implements the calls of `Worker`.

    Args:
        assembly: Components of the recipe; of the policy only the tokenizer and the shape are used.
        engine: Engine that samples from the replicas.
        reward: Reward instead of the recipe's; None: the recipe's.
        places: Maximum number of concurrent episodes.
        node: Node id of this process.
    """

    def __init__(
        self, assembly: RunComponents, engine: ReplicatedEngine, *, reward: Reward | None, places: int, node: str
    ) -> None:
        self.assembly = assembly if reward is None else assembly.with_components(reward=reward)
        self.engine, self.places, self.node = engine, places, node
        self._own_reward = assembly.reward
        self._collectors: dict[tuple[float, bool, bool], Collector] = {}
        self._memory: bytes | None = None

    async def play(self, work: Work) -> AsyncGenerator[Sequence[Event], None]:
        """Play a group and yield its events in batches; see `Worker.play`."""
        if work.memory is not None and work.memory != self._memory:
            self._memory = work.memory
            self.assembly.method.load_state(pickle.loads(work.memory))  # from the run's own process
        reports = _GroupReports(work.played, asyncio.Queue())
        playing = asyncio.ensure_future(self._played(work, reports))
        try:
            is_finished = False
            while not is_finished:
                events = [await reports.events.get()]
                while not reports.events.empty():
                    events.append(reports.events.get_nowait())
                is_finished = isinstance(events[-1], Finished)
                yield events
        finally:
            playing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await playing

    async def status(self) -> WorkerStatus:
        """Return the current status of the worker."""
        states = [collector.status() for collector in self._collectors.values()]
        running = sum(state.running for state in states)
        waits = [wait for collector in self._collectors.values() for wait in collector.waits()]
        return WorkerStatus(
            running=running,
            queued=sum(state.queued for state in states),
            on_tools=sum(state.on_tools * state.running for state in states) / max(1, running),
            retried=sum(state.retried for state in states),
            moved=sum(collector.moved for collector in self._collectors.values()),
            waits=tuple(sorted(waits, key=lambda wait: -wait[2])[:_WAITS_TOLD]),
            rerouted=self.engine.rerouted,
            judged=judge_metrics(self._own_reward),
            busy_seconds=time.process_time(),
            node=self.node,
            process=os.getpid(),
        )

    async def _played(self, work: Work, reports: _GroupReports) -> None:
        _GROUP_REPORTS.set(reports)
        try:
            strategy = work.strategy if work.strategy is not None else self.assembly.strategy
            group = await self._collector(work).group(work.plan, strategy)
            reports.events.put_nowait(Finished(group))
        except Exception as failure:  # a strategy is third-party code; the caller decides about its failures
            reports.events.put_nowait(Finished(None, picklable_error(failure)))

    def _collector(self, work: Work) -> Collector:
        key = (work.temperature, work.at_evaluation, work.recorded)
        if key not in self._collectors:
            method = self.assembly.method.at_evaluation() if work.at_evaluation else self.assembly.method
            collector = self.assembly.build_collector(
                self.assembly.policy_actor(self.engine, temperature=work.temperature),
                record=_RemoteRecord() if work.recorded else None,
                method=method,
            )
            self._collectors[key] = replace(collector, max_in_flight=self.places, freed=_tell_of_a_place)
        return self._collectors[key]


def picklable_error(failure: Exception) -> Exception:
    """Return the error if it can be pickled, else a `RuntimeError` with its description."""
    try:
        loaded: Any = pickle.loads(pickle.dumps(failure))  # from this process
    except Exception:
        return RuntimeError(describe_exception(failure))
    return failure if type(loaded) is type(failure) else RuntimeError(describe_exception(failure))
