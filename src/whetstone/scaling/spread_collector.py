"""How are groups played by workers, where a collector would have played them itself? One queue, from which whoever has
room takes the next.

    outcomes → group → a worker with room → turns on record, one by one → the group
                     → gone → another worker, behind the turns on record → the group

No worker has a queue of its own to speak of, so none has to be robbed: what waits, waits here. A worker takes a group
more than its places hold, lest it idles while its slowest episode runs.

Easy to get wrong: a worker that dies takes its groups back to where they began, not the run. Another plays them with
the same seeds, behind what was on record; nothing of them was handed on before they were whole, so nothing doubles.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from whetstone.causes import cause_of
from whetstone.contracts import fulfils
from whetstone.errors import InfrastructureError
from whetstone.rewards import Compares
from whetstone.rollout import Collector, Method
from whetstone.rollout.optional import Sized
from whetstone.rollout.protocol import EpisodeRecord, Plan, Stateful, Strategy
from whetstone.rollout.status import RolloutStatus
from whetstone.scaling.protocol import Dropped, Event, Finished, Gone, PlaceFree, TurnOver, Work
from whetstone.scaling.worker_pool import Place, WorkerPool
from whetstone.trajectory import Group, Turn

_IN_WORKERS = ("allocate", "start", "environment_wrapper", "reward", "context_transforms", "stops", "rewrites")
"""Parts of a method that act while episodes are played; the others act where it is learned."""


class GroupRecord(EpisodeRecord, Protocol):
    """A record that knows which episodes of a group were begun."""

    def begun_episodes(self, name: str) -> Mapping[str, tuple[Turn, ...]]:
        """By episode, the turns on record of those whose ids begin so."""
        ...


@dataclass(slots=True, kw_only=True)
class SpreadCollector(Collector):
    """A collector whose groups workers play."""

    pool: WorkerPool
    recipe_strategy: Strategy
    """The one that workers have already."""
    temperature: float
    at_evaluation: bool
    _tasks: dict[str, float] = field(init=False, default_factory=dict)
    """Groups that wait for a worker, and since when."""

    def __post_init__(self) -> None:
        Collector.__post_init__(self)
        self.pool.heard.append(self._see_room)
        self._see_room()

    async def group(self, plan: Plan, strategy: Strategy) -> Group:
        """See `Collector.group`."""
        size = strategy.group_size if fulfils(strategy, Sized) else 1
        work = Work(
            plan,
            None if strategy is self.recipe_strategy else strategy,
            self.temperature,
            self.at_evaluation,
            recorded=self.record is not None,
            memory=packed(self.method),
        )
        while True:
            place = await self._place(plan, size)
            running = self._watch.begin()
            try:
                finished = await self._played_by(place, replace(work, played=self._begun(plan)))
            except Gone:
                self._watch.drop(running)
                self._watch.retried += 1
                self.pool.lose(place)
                continue
            except BaseException:
                self._watch.drop(running)
                raise
            finally:
                self.pool.give_back(place)
            if finished.group is None:
                self._watch.drop(running)
                raise finished.failure or InfrastructureError(f"group {plan.number} came to nothing")
            self._watch.end(running, sum(t.action_tokens for t in finished.group.trajectories))
            self._count(finished.group)
            return finished.group

    @property
    def moved(self) -> int:
        """See `Collector.moved`."""
        return self._watch.moved + self.pool.moved

    def waits(self) -> list[tuple[str, str, float]]:
        """See `Collector.waits`."""
        now = time.perf_counter()
        queued = [(name, "a worker with room", now - since) for name, since in self._tasks.items()]
        return sorted([*queued, *self.pool.waits()], key=lambda wait: -wait[2])

    def status(self) -> RolloutStatus:
        """See `Collector.status`; what workers said when they were last looked at."""
        state = self._watch.status(self.busy_seconds() if self.busy_seconds is not None else None)
        seen = self.pool.seen()
        running = sum(status.running for status in seen)
        return replace(
            state,
            running=running,
            queued=sum(status.queued for status in seen),
            on_tools=sum(status.on_tools * status.running for status in seen) / max(1, running),
            retried=self._watch.retried + sum(status.retried for status in seen),
        )

    async def _place(self, plan: Plan, size: int) -> Place:
        """A worker with room for the group."""
        name = f"{plan.name}{plan.task.id}"
        self._tasks[name] = time.perf_counter()
        self._watch.queued += 1
        self._see_room()
        try:
            return await self.pool.place(size)
        finally:
            del self._tasks[name]
            self._watch.queued -= 1
            self._see_room()

    async def _played_by(self, place: Place, work: Work) -> Finished:
        """What a worker makes of the group, with its turns on record as they come.

        Raises:
            Gone: It died over it.
        """
        async with contextlib.aclosing(place.worker.play(work)) as told:
            async for events in told:
                self._watch.moved += len(events)
                for event in events:
                    if isinstance(event, Finished):
                        return event
                    if isinstance(event, PlaceFree):
                        self.pool.free(place)
                    self._note(event)
        raise Gone(f"{place.worker.name} ended without a word")

    def _note(self, event: Event) -> None:
        if isinstance(event, TurnOver) and self.record is not None:
            self.record.add(event.episode, event.turn)
        elif isinstance(event, Dropped) and self.record is not None:
            self.record.drop(event.episode)

    def _begun(self, plan: Plan) -> Mapping[str, Sequence[Turn]]:
        return self.record.begun_episodes(plan.name) if fulfils(self.record, GroupRecord) else {}

    def _count(self, group: Group) -> None:
        """See what came of it, as where each episode was seen."""
        self._watch.episodes += len(group.trajectories) - 1  # the group itself was counted as one
        for trajectory in group.trajectories:
            self._see(trajectory)
            if isinstance(self.reward, Compares) and trajectory.score is not None:
                self._beginning.see(None if trajectory.removal is None else cause_of(trajectory))

    def _see_room(self) -> None:
        if self._watch.queued == 0 and self.pool.has_room:
            self._vacant.set()
        else:
            self._vacant.clear()


def packed(method: Method) -> bytes | None:
    """What the parts remember that act in workers; None where there are none."""
    state: dict[str, Any] = {
        name: part.state()
        for name, part in method.parts()
        if name.partition(".")[0] in _IN_WORKERS and isinstance(part, Stateful)
    }
    return pickle.dumps(state) if state else None
