"""Collector that distributes groups to environment workers, from one queue to the next worker with room.

    outcomes → group → a worker with room → recorded turns, one by one → the group
                     → gone → another worker, after the recorded turns → the group

Workers have almost no queues, so no work stealing is needed: groups wait here. A worker accepts one group more than its
slots hold, so that it is not idle while its slowest episode runs.

Note:
    If a worker dies, its groups restart, not the run. Another worker plays them with the same seeds, after the recorded
    turns. Groups are passed on only when they are complete, so nothing is duplicated.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from whetstone.capabilities import implements_protocol
from whetstone.errors import InfrastructureError
from whetstone.failure_causes import find_failure_cause
from whetstone.rewards import GroupReward
from whetstone.rollout import Collector, MethodComponents
from whetstone.rollout.optional_protocols import HasGroupSize
from whetstone.rollout.protocol import EpisodeRecord, GroupPlan, Stateful, Strategy
from whetstone.rollout.status import RolloutStatus
from whetstone.scaling.protocol import ActorUnavailable, EpisodeReset, Event, Finished, SlotFree, TurnFinished, Work
from whetstone.scaling.worker_pool import SlotReservation, WorkerPool
from whetstone.trajectory import Group, Turn

_IN_WORKERS = (
    "allocate", "start", "environment_wrapper", "action_mask", "reward", "context_transforms", "stops", "rewrites",
)  # fmt: skip
"""Components of a method that act while episodes are played, so that workers need their state."""


class GroupRecord(EpisodeRecord, Protocol):
    """Episode record that can list the started episodes of a group."""

    def begun_episodes(self, name: str) -> Mapping[str, tuple[Turn, ...]]:
        """Return the recorded turns of each started episode whose id starts with `name`."""
        ...


@dataclass(slots=True, kw_only=True)
class DistributedCollector(Collector):
    """Collector that sends groups to environment workers. `RayCluster.distribute_collector` creates it."""

    pool: WorkerPool
    """Pool of the environment workers."""
    recipe_strategy: Strategy
    """Strategy of the recipe, which workers build themselves; others are sent with the group."""
    temperature: float
    """Sampling temperature."""
    at_evaluation: bool
    """Whether the groups belong to evaluations instead of training."""
    _tasks: dict[str, float] = field(init=False, default_factory=dict)
    """Groups that wait for a worker, with the start time of the wait."""

    def __post_init__(self) -> None:
        Collector.__post_init__(self)
        self.pool.listeners.append(self._see_room)
        self._see_room()

    async def group(self, plan: GroupPlan, strategy: Strategy) -> Group:
        """Play a group on a worker; see `Collector.group`.

        If the worker dies, another one continues after the recorded turns.
        """
        size = strategy.group_size if implements_protocol(strategy, HasGroupSize) else 1
        work = Work(
            plan,
            None if strategy is self.recipe_strategy else strategy,
            self.temperature,
            self.at_evaluation,
            recorded=self.record is not None,
            memory=pickle_state(self.method),
        )
        while True:
            place = await self._place(plan, size)
            running = self._watch.begin()
            try:
                finished = await self._played_by(place, replace(work, played=self._begun(plan)))
            except ActorUnavailable:
                self._watch.drop(running)
                self._watch.retried += 1
                self.pool.report_lost(place)
                continue
            except BaseException:
                self._watch.drop(running)
                raise
            finally:
                self.pool.release(place)
            if finished.group is None:
                self._watch.drop(running)
                raise finished.failure or InfrastructureError(f"group {plan.number} has no result")
            self._watch.end(running, sum(t.action_tokens for t in finished.group.trajectories))
            self._count(finished.group)
            return finished.group

    @property
    def moved(self) -> int:
        """Return a progress counter over all workers; see `Collector.moved`."""
        return self._watch.moved + self.pool.moved

    def waits(self) -> list[tuple[str, str, float]]:
        """Return the waits of groups for a worker and the longest waits in workers; see `Collector.waits`."""
        now = time.perf_counter()
        queued = [(name, "a worker with room", now - since) for name, since in self._tasks.items()]
        return sorted([*queued, *self.pool.waits()], key=lambda wait: -wait[2])

    def status(self) -> RolloutStatus:
        """Return the combined status of all workers, by the last status of each."""
        state = self._watch.status(self.busy_seconds() if self.busy_seconds is not None else None)
        seen = self.pool.last_statuses()
        running = sum(status.running for status in seen)
        return replace(
            state,
            running=running,
            queued=sum(status.queued for status in seen),
            on_tools=sum(status.on_tools * status.running for status in seen) / max(1, running),
            retried=self._watch.retried + sum(status.retried for status in seen),
        )

    async def _place(self, plan: GroupPlan, size: int) -> SlotReservation:
        """Reserve slots for a group on a worker; waits until one has room."""
        name = f"{plan.name}{plan.task.id}"
        self._tasks[name] = time.perf_counter()
        self._watch.queued += 1
        self._see_room()
        try:
            return await self.pool.reserve_slots(size)
        finally:
            del self._tasks[name]
            self._watch.queued -= 1
            self._see_room()

    async def _played_by(self, place: SlotReservation, work: Work) -> Finished:
        """Play a group on a worker, and record its turns as they arrive.

        Raises:
            ActorUnavailable: The worker died.
        """
        async with contextlib.aclosing(place.worker.play(work)) as stream:
            async for events in stream:
                self._watch.moved += len(events)
                for event in events:
                    if isinstance(event, Finished):
                        return event
                    if isinstance(event, SlotFree):
                        self.pool.free_slot(place)
                    self._note(event)
        raise ActorUnavailable(f"{place.worker.name} ended without a result")

    def _note(self, event: Event) -> None:
        if isinstance(event, TurnFinished) and self.record is not None:
            self.record.add(event.episode, event.turn)
        elif isinstance(event, EpisodeReset) and self.record is not None:
            self.record.drop(event.episode)

    def _begun(self, plan: GroupPlan) -> Mapping[str, Sequence[Turn]]:
        return self.record.begun_episodes(plan.name) if implements_protocol(self.record, GroupRecord) else {}

    def _count(self, group: Group) -> None:
        """Count the results of a group in the status, as if its episodes were played in this process."""
        self._watch.episodes += len(group.trajectories) - 1  # the group itself was counted as one
        for trajectory in group.trajectories:
            self._see(trajectory)
            if isinstance(self.reward, GroupReward) and trajectory.score is not None:
                self._beginning.record_result(None if trajectory.removal is None else find_failure_cause(trajectory))

    def _see_room(self) -> None:
        if self._watch.queued == 0 and self.pool.has_room:
            self._vacant.set()
        else:
            self._vacant.clear()


def pickle_state(method: MethodComponents) -> bytes | None:
    """Pickle the states of the method's components that act in workers.

    Returns None if no component has a state.
    """
    state: dict[str, Any] = {
        name: part.state()
        for name, part in method.named_components()
        if name.partition(".")[0] in _IN_WORKERS and isinstance(part, Stateful)
    }
    return pickle.dumps(state) if state else None
