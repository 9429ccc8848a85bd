"""Groups of each update of reinforcement: sampled ones, and those of other sources.

    weights of version v → groups sampled under v, by the deadline rule ┐
                           groups of other sources, by their fractions  ┴→ on record → update

A recorded update gets the same groups again. Otherwise its groups are recorded before they are trained on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whetstone.assembly.assembly import RunComponents
from whetstone.capabilities import implements_protocol
from whetstone.errors import PromptTooLong
from whetstone.inference import Engine
from whetstone.recipe import ReinforcementSettings
from whetstone.record import RunRecord
from whetstone.record.run_store import RunStore
from whetstone.rollout import Collector, GroupPlan, PolicyActor
from whetstone.rollout.deadlines import deadline_metrics, step_deadline
from whetstone.rollout.group_sources import MixedSource, PlaysEpisodes
from whetstone.seeding import derive_random, derive_seed
from whetstone.training.group_mixer import GroupMixer, MixedGroups, total_groups
from whetstone.training.group_stream import GroupStream, restore_admission
from whetstone.training.supervised import first_task
from whetstone.trajectory import Group, Task

_AT_THE_BEGINNING: Mapping[str, Any] = {"next": 0, "live": {}}


@dataclass(frozen=True, slots=True)
class TakenGroups:
    """Groups of an update, from `UpdateGroups.take`."""

    sampled: list[Group]
    """Sampled groups that are trained on."""
    filtered_groups: list[Group]
    """Groups that were sampled for the update and rejected by dynamic sampling."""
    mixed: MixedGroups
    """Groups of other sources."""

    @property
    def played(self) -> list[Group]:
        """All groups that were sampled for the update, including rejected ones."""
        return [*self.sampled, *self.filtered_groups]


@dataclass(slots=True)
class _Sampling:
    """Collector and stream that run concurrently with the learner."""

    collector: Collector
    stream: GroupStream


class UpdateGroups:
    """Takes the groups of each update from the policy's samples, other sources, or the record.

    Created by `Reinforcement`.

    Args:
        assembly: Components of the run.
        engine: Engine that samples from the policy.
        settings: Settings of the stage.
        store: Journal of the run.
        update: Number of the next update, from 0.
        state: Sampling state of a checkpoint; None at the start.
        by_recipe: Whether each group is sampled with one policy version, so that the recipe determines all results.
        waiting_for: Returns a context manager that reports a wait for the given thing.
    """

    def __init__(
        self,
        assembly: RunComponents,
        engine: Engine,
        settings: ReinforcementSettings,
        store: RunStore,
        *,
        update: int,
        state: Mapping[str, Any] | None,
        by_recipe: bool,
        waiting_for: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self.assembly, self.engine, self.settings, self.store = assembly, engine, settings, store
        self.by_recipe, self.update, self._waiting_for = by_recipe, update, waiting_for
        self.consumed: list[int] = []
        """Numbers of the sampled groups of the last update."""
        self._filtered_numbers: list[int] = []
        self._state = state
        self._sampling: _Sampling | None = None
        self._first_task = first_task(assembly.resolved.recipe)
        self._deadline = step_deadline(settings.step_timeout_seconds)
        sources = assembly.method.sources
        groups = total_groups(sources, settings.tasks_per_step)
        self._mixer = GroupMixer(sources, groups=groups, waits=settings.deterministic, report=store.log)
        self._stores: list[RunStore] = []
        for name, mixed in sources.items():
            if implements_protocol(mixed.source, PlaysEpisodes):
                mixed.source.open(self._player(name, mixed.source))

    @property
    def collector(self) -> Collector | None:
        """Collector of sampled episodes; None before sampling starts."""
        return self._sampling.collector if self._sampling is not None else None

    @property
    def state(self) -> dict[str, Any] | None:
        """Sampling state for a checkpoint; None if the journal has it."""
        if not self.by_recipe or self._sampling is None:
            return None
        return self._sampling.stream.state(without=self.consumed)

    async def settle(self) -> None:
        """Wait until all groups that a checkpoint requires are recorded."""
        if self.by_recipe and self._sampling is not None:
            with self._waiting_for("groups in flight"):
                await self._sampling.stream.idle()

    def sample_under(self, version: int) -> None:
        """Start or continue sampling with the weights of a version, which the engine has loaded."""
        if self._sampling is None:
            self._sampling = self._start(version)
        else:
            self._sampling.stream.advance(self.consumed, self._filtered_numbers)
        self.consumed, self._filtered_numbers = [], []

    async def take(self, update: int) -> TakenGroups:
        """Return the groups of an update: recorded ones, or new ones, which are recorded first.

        Args:
            update: Number of the update, from 0.
        """
        self.update = update
        numbers = self.store.consumed.get(update)
        if numbers is not None:
            filtered_groups = [self._on_record(number) for number in self.store.passed_over.get(update, ())]
            mixed = await self._mixed(update)
            if self._sampling is None:
                return TakenGroups([self._on_record(number) for number in numbers], filtered_groups, mixed)
            return TakenGroups(await self._sampling.stream.take(numbers), filtered_groups, mixed)
        assert self._sampling is not None
        stream, timeout, started = self._sampling.stream, self._deadline.seconds, time.perf_counter()
        self._mixer.request(update, self.store.mixed)
        with self._waiting_for("groups"):
            groups: list[Group] = await stream.batch(timeout_seconds=timeout)
        waited = time.perf_counter() - started
        if timeout is None or waited < timeout:
            self._deadline.add([waited])
        mixed = await self._mixed(update)
        numbers = [group.number for group in groups]
        filtered_groups = [stream.filtered_groups[number] for number in stream.rejected_before(numbers)]
        await asyncio.to_thread(self.store.flush_to_disk)
        self.store.consume_groups(update, numbers, [group.number for group in filtered_groups], mixed.spans)
        await asyncio.to_thread(self.store.flush_to_disk)
        if update + 1 < self.settings.steps:
            self._mixer.request(update + 1, self.store.mixed, is_ahead=True)
        return TakenGroups(groups, filtered_groups, mixed)

    def mark_used(self, groups: TakenGroups) -> None:
        """Mark groups as used by a finished update, so that later updates do not use them."""
        self.consumed = [group.number for group in groups.sampled]
        self._filtered_numbers = [group.number for group in groups.filtered_groups]
        self.update += 1

    def discard(self, update: int) -> None:
        """Quarantine the groups of an update that failed; others are sampled instead."""
        numbers = self.store.record_quarantine(update)
        if self._sampling is not None:
            self._sampling.stream.discard(numbers)

    def metrics(self, groups: TakenGroups) -> dict[str, float]:
        """Return the metrics of sampling after an update: deadlines, buffer, rejected and expired groups."""
        deadlines = {"time/step_deadline": self._deadline}
        metrics = {
            "group/filtered": float(len(groups.filtered_groups)),
            "group/prompt_too_long": float(self.store.too_long(before=max(self.consumed, default=0))),
        }
        if self._sampling is not None:
            collector, stream = self._sampling.collector, self._sampling.stream
            if isinstance(collector, Collector):
                deadlines |= {
                    "time/turn_deadline": collector.turn_deadline,
                    "time/group_deadline": collector.group_deadline,
                }
                metrics |= collector.concurrency_metrics()
            metrics |= {
                "episode/retried": float(collector.status().retried),
                "group/buffered": float(stream.finished - len(groups.sampled)),
                "group/expired": float(stream.expired),
            }
        metrics |= {f"sources/{name}/late": 1.0 for name in groups.mixed.late}
        return metrics | deadline_metrics(deadlines)

    async def close(self) -> None:
        """Stop sampling and close the sources; finished groups are recorded."""
        await self._mixer.close()
        for store in self._stores:
            store.close()
        if self._sampling is not None:
            await self._sampling.stream.close()

    def _start(self, version: int) -> _Sampling:
        assembly, settings = self.assembly, self.settings
        collector = assembly.build_collector(self._actor(), record=self.store, method=assembly.method)
        admission, following = restore_admission(
            self.store,
            (self._state or _AT_THE_BEGINNING) if self.by_recipe else None,
            groups_per_update=settings.tasks_per_step,
            admit_ahead=settings.admit_ahead,
            version=version,
            updates=settings.steps,
        )
        stream = GroupStream(
            collector,
            assembly.strategy,
            self._plan,
            store=self.store,
            admission=admission,
            next_number=following,
            max_staleness=settings.max_staleness,
            in_order=self.by_recipe,
            max_failures=settings.max_failures,
            refill=assembly.method.dynamic_sampling,
        )
        stream.start()
        return _Sampling(collector, stream)

    def _actor(self) -> PolicyActor:
        return self.assembly.policy_actor(self.engine, temperature=self.assembly.resolved.recipe.rollout.temperature)

    def _plan(self, number: int) -> GroupPlan:
        seed, source = self.assembly.resolved.recipe.seed, self.assembly.source
        # the version at which the group was admitted
        live = self._sampling.stream.admission.live if self._sampling is not None else {}
        step = live.get(number, self.update)
        chosen = self.store.tasks.get(number)  # a resumed run keeps its choice
        if chosen is None and self.assembly.method.curriculum is not None:
            draw = derive_random(seed, "curriculum", number)
            chosen = self.assembly.method.curriculum.choose(source, self._first_task, number, step, draw)
        chosen = self._first_task + number if chosen is None else chosen
        task = chosen if isinstance(chosen, Task) else source.task(chosen)
        return GroupPlan(task, derive_seed(seed, "rollout", number), number, f"group-{number}/", step, chosen)

    def _on_record(self, number: int) -> Group:
        return self.store.load(number, self._plan(number).task)

    async def _mixed(self, update: int) -> MixedGroups:
        with self._waiting_for("other sources of groups"):
            return await self._mixer.take(update, self.store.mixed)

    def _player(self, name: str, source: PlaysEpisodes) -> Callable[[int], Awaitable[Group]]:
        """Return a function that plays the group at a position of a source.

        A recorded group is loaded instead.
        """
        assembly = self.assembly.with_components(environment=source.environment, cluster=None)
        seed, strategy, size = assembly.resolved.recipe.seed, assembly.strategy, self.settings.tasks_per_step
        store = RunStore(source_record(self.store.run_dir, name), groups_per_file=size, log=self.store.log)
        self._stores.append(store)
        # states of the environment of sampled groups cannot be restored in another one
        method = replace(assembly.method, start=None, allocate=None)
        collector = assembly.build_collector(self._actor(), record=store, method=method)

        async def play(position: int) -> Group:
            task = assembly.source.task(self._first_task + position)
            if store.has_group(position):
                return store.load(position, task)
            store.admit_group(position, self.update, self._first_task + position)
            drawn = derive_seed(seed, "imagined", name, position)
            try:
                group = await collector.group(
                    GroupPlan(task, drawn, position, f"group-{position}/", self.update), strategy
                )
            except PromptTooLong:
                group = Group(task, (), position)
            store.store_group(group)
            await asyncio.to_thread(store.flush_to_disk)
            return group

        return play


def source_record(run_dir: Path, name: str) -> Path:
    """Return the folder with the record of a source whose groups are played in the run."""
    return run_dir / "sources" / name


def open_recorded(record: RunRecord, sources: Mapping[str, MixedSource], task: Callable[[int], Task]) -> None:
    """Open sources whose groups were played in a run, so that they return the recorded groups.

    Args:
        record: Record of the run.
        sources: Sources by name.
        task: Returns the task at a position.
    """

    def reader(name: str) -> Callable[[int], Awaitable[Group]]:
        played = RunRecord(source_record(record.run_dir, name))

        async def read(position: int) -> Group:
            return played.load(position, task(position))

        return read

    for name, mixed in sources.items():
        if implements_protocol(mixed.source, PlaysEpisodes):
            mixed.source.open(reader(name))
