"""What runs in the process of an environment worker? The recipe's environments, tools, chat and method, and the
collector that plays episodes anywhere; only its engine is elsewhere.

    work → a group, its episodes many at once → turns as they come about, and the group → who asked

Easy to get wrong: the record of a run has one owner, who is not here. A worker begins behind the turns it is sent and
tells of each new one; where it dies, another goes on behind what was told.
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

from whetstone.assembly.assembly import Assembly
from whetstone.rewards import Reward
from whetstone.rewards.judge_usage import judge_metrics
from whetstone.rollout import Collector
from whetstone.scaling.protocol import Dropped, Event, Finished, PlaceFree, TurnOver, Work, WorkerStatus
from whetstone.scaling.replicated_engine import ReplicatedEngine
from whetstone.trajectory import Turn
from whetstone.user_code import describe_exception

_WAITS_TOLD = 5


@dataclass(frozen=True, slots=True)
class _Told:
    """Where the episodes of one group begin, and whom they tell of their turns."""

    played: Mapping[str, Sequence[Turn]]
    events: asyncio.Queue[Event]


_OF_THIS_GROUP: ContextVar[_Told] = ContextVar("_OF_THIS_GROUP")
"""Set where a group begins; its episodes are tasks below that."""


class _RecordElsewhere:
    """See `EpisodeRecord`."""

    def played(self, episode: str) -> tuple[Turn, ...]:
        """Those that came with the group."""
        return tuple(_OF_THIS_GROUP.get().played.get(episode, ()))

    def add(self, episode: str, turn: Turn) -> None:
        """Tell of it."""
        _OF_THIS_GROUP.get().events.put_nowait(TurnOver(episode, turn))

    def drop(self, episode: str) -> None:
        """Tell of it."""
        _OF_THIS_GROUP.get().events.put_nowait(Dropped(episode))


def _tell_of_a_place() -> None:
    _OF_THIS_GROUP.get().events.put_nowait(PlaceFree())


class EnvironmentWorker:
    """Plays the groups of a recipe.

    Args:
        assembly: Its parts; of the policy only the tokenizer and the shape are read.
        engine: Draws from the replicas.
        reward: Judges in the place of the recipe's own; None: that one.
        places: Episodes running at once.
        node: Where this is.
    """

    def __init__(
        self, assembly: Assembly, engine: ReplicatedEngine, *, reward: Reward | None, places: int, node: str
    ) -> None:
        self.assembly = assembly if reward is None else assembly.with_components(reward=reward)
        self.engine, self.places, self.node = engine, places, node
        self._own_reward = assembly.reward
        self._collectors: dict[tuple[float, bool, bool], Collector] = {}
        self._memory: bytes | None = None

    async def play(self, work: Work) -> AsyncGenerator[Sequence[Event], None]:
        """See `Worker.play`."""
        if work.memory is not None and work.memory != self._memory:
            self._memory = work.memory
            self.assembly.method.load_state(pickle.loads(work.memory))  # from the run's own process
        told = _Told(work.played, asyncio.Queue())
        playing = asyncio.ensure_future(self._played(work, told))
        try:
            over = False
            while not over:
                events = [await told.events.get()]
                while not told.events.empty():
                    events.append(told.events.get_nowait())
                over = isinstance(events[-1], Finished)
                yield events
        finally:
            playing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await playing

    async def status(self) -> WorkerStatus:
        """See `Worker.status`."""
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

    async def _played(self, work: Work, told: _Told) -> None:
        _OF_THIS_GROUP.set(told)
        try:
            strategy = work.strategy if work.strategy is not None else self.assembly.strategy
            group = await self._collector(work).group(work.plan, strategy)
            told.events.put_nowait(Finished(group))
        except Exception as failure:  # a strategy is foreign code; whoever asked decides what a failure means
            told.events.put_nowait(Finished(None, carried(failure)))

    def _collector(self, work: Work) -> Collector:
        key = (work.temperature, work.at_evaluation, work.recorded)
        if key not in self._collectors:
            method = self.assembly.method.at_evaluation() if work.at_evaluation else self.assembly.method
            collector = self.assembly.collector(
                self.assembly.policy_actor(self.engine, temperature=work.temperature),
                record=_RecordElsewhere() if work.recorded else None,
                method=method,
            )
            self._collectors[key] = replace(collector, max_in_flight=self.places, freed=_tell_of_a_place)
        return self._collectors[key]


def carried(failure: Exception) -> Exception:
    """The failure where it can travel, else one that says what it was."""
    try:
        again: Any = pickle.loads(pickle.dumps(failure))  # our own
    except Exception:
        return RuntimeError(describe_exception(failure))
    return failure if type(again) is type(failure) else RuntimeError(describe_exception(failure))
