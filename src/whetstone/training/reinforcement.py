"""Synchronous, one step off or asynchronous: what is the one loop, and how does it go on after a kill?

    weights of version v to the engine → groups for update v, by the deadline rule → on record → update → version v + 1

Sampling runs beside it as far ahead as `admit_ahead` says (`stream.py`). With 0 it starts when the weights are there
and is over when the update begins: synchronous.

A run that goes on makes the updates on record again, with the groups each of them had. Where everything is a function
of the recipe (`deterministic`, or nothing ahead) sampling takes part in that: what is on record is taken from there,
what is not is sampled under the version it would have had. Otherwise sampling begins behind the last update on record,
with the groups that were alive then.

Easy to get wrong: the engine must never see half an update. Where sampling goes on during one, the engine has weights
of its own, and takes the new ones whole, between two of its steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from whetstone.assembly.assembly import Assembly
from whetstone.causes import causes_of
from whetstone.compute_thread import run_in_compute_thread
from whetstone.contracts import fulfils
from whetstone.errors import RunDirectoryError, WhetstoneError
from whetstone.inference import Engine, publish
from whetstone.inference.protocol import Sleeps
from whetstone.learning.protocol import Learner
from whetstone.learning.spec import UpdateBatch
from whetstone.recipe import ReinforcementSettings
from whetstone.record.store import RunStore
from whetstone.rewards.judge_usage import judge_metrics
from whetstone.rollout import Collector, Plan, StepOutcome
from whetstone.rollout.deadlines import deadline_metrics, step_deadline
from whetstone.seeding import derive_random, derive_seed
from whetstone.training.group_mixer import GroupMixer, MixedGroups
from whetstone.training.stream import GroupStream, admission_of
from whetstone.training.supervised import costs_of, describe_groups, first_task, imitated, spent_on
from whetstone.training.train_step import train_step
from whetstone.trajectory import Group, Task
from whetstone.user_code import describe_exception

_ATTEMPTS = 3
"""How often an update may take the process down with it before its groups are quarantined."""
_UPDATE = "its update"
_AT_THE_BEGINNING: Mapping[str, Any] = {"next": 0, "live": {}}


@dataclass(slots=True)
class _Sampling:
    """What runs beside the learner."""

    collector: Collector
    stream: GroupStream


class Reinforcement:
    """The stage, one update a call.

    Args:
        base_version: The engine's version before the first update of the stage.
        state: What `state` said when the checkpoint was made; None at the beginning.
        done: Updates in that checkpoint.
        learns: Whether weights change; else each update samples, and that is all.
    """

    def __init__(
        self,
        assembly: Assembly,
        learner: Learner,
        engine: Engine,
        settings: ReinforcementSettings,
        *,
        store: RunStore,
        base_version: int,
        state: Mapping[str, Any] | None = None,
        done: int = 0,
        learns: bool = True,
    ) -> None:
        self.learns = learns
        self.assembly, self.learner, self.engine, self.settings, self.store = assembly, learner, engine, settings, store
        self.base_version, self.done = base_version, done
        self.by_recipe = settings.deterministic or settings.admit_ahead == 0
        """Whether a group is sampled under one version alone."""
        self._state = state
        self._consumed: list[int] = []
        self._passed_over: list[int] = []
        self._unheard: StepOutcome | None = None
        self._busy = engine.statistics.busy_seconds
        self._sampling: _Sampling | None = None
        self._doing: tuple[str, float] = ("nothing", time.perf_counter())
        self._first_task = first_task(assembly.resolved.recipe)
        self._deadline = step_deadline(settings.step_timeout_seconds)
        self._mixer = GroupMixer(
            assembly.method.sources, sampled=settings.tasks_per_step, waits=settings.deterministic, report=store.say
        )
        self.causes: Mapping[str, int] = {}
        """See `Stage.causes`."""

    async def step(self, budget_share: float = 0.0) -> dict[str, float]:
        """The next update, as metrics.

        Raises:
            NonFiniteError, FaultBudgetError, SaveError, RunDirectoryError: It cannot go on.
        """
        update, seed = self.done, self.assembly.resolved.recipe.seed
        self._quarantine_what_kills(update)
        again = update in self.store.consumed
        if self.by_recipe or not again:
            await self._sample_under(update)
        began = time.perf_counter()
        shown = await imitated(self.assembly, self.settings, update=update)
        shown.record_faults(self.store.fault)
        for attempt in range(1, _ATTEMPTS + 1):
            groups, passed_over, mixed = await self._groups(update)
            sampled = time.perf_counter()
            self.store.begin(update)
            played = [*groups, *passed_over]
            self.causes = causes_of(trajectory for group in played for trajectory in group.trajectories)
            metrics = describe_groups(played) | costs_of(played) | spent_on(played) | self._ages(groups)
            await self._make_room()
            try:
                batch = UpdateBatch(tuple(groups), tuple(shown.segments), self.version, budget_share)
                with self._waiting_for(_UPDATE), self._memory_reported():
                    stepped = await run_in_compute_thread(
                        train_step,
                        self.assembly.method,
                        self.learner,
                        batch,
                        passed_over,
                        mixed.groups,
                        seed=seed,
                        update=update,
                    )
                break
            except WhetstoneError:
                raise
            except Exception as failure:  # whatever it is, this batch is to blame: it is put aside
                if attempt == _ATTEMPTS or self._sampling is None:
                    raise
                self._put_aside(update, describe_exception(failure))
        metrics |= {f"sources/{name}/late": 1.0 for name in mixed.late}
        metrics |= stepped.metrics | judge_metrics(self.assembly.reward) | self._deadlines()
        if self.settings.imitation is not None:
            metrics |= shown.metrics
        if self.assembly.cluster is not None:
            metrics |= self.assembly.cluster.metrics()
        self._unheard = stepped.heard
        if not self.by_recipe:
            await self._observe()
        self.learner.end_step()
        self.store.finish(update)
        self.done += 1
        self._consumed = [group.number for group in groups]
        self._passed_over = [group.number for group in passed_over]
        now = time.perf_counter()
        trajectories = [t for group in groups for t in group.trajectories]
        busy, self._busy = self._busy, self.engine.statistics.busy_seconds
        metrics |= {
            "time/rollout": sampled - began,
            "time/update": now - sampled,
            "time/generation": self._busy - busy,
            "time/environment_wait_mean": sum(turn.environment_seconds for t in trajectories for turn in t.turns)
            / max(1, len(trajectories)),
            "throughput/tokens_per_second": sum(t.action_tokens for t in trajectories) / (now - began),
            "group/filtered": float(len(passed_over)),
            "group/prompt_too_long": float(self.store.too_long(before=max(self._consumed, default=0))),
            "throughput/episodes_per_second": len(trajectories) / (now - began),
        }
        if self._sampling is not None:
            metrics |= {
                "episode/retried": float(self._sampling.collector.status().retried),
                "group/buffered": float(self._sampling.stream.finished - len(groups)),
                "group/expired": float(self._sampling.stream.expired),
            }
        return metrics

    async def settle(self) -> None:
        """Come to where a checkpoint can be made: what it needs to go on is on record."""
        if self.by_recipe and self._sampling is not None:
            stream = self._sampling.stream
            with self._waiting_for("groups under way"):
                await stream.idle()
        await self._observe()

    async def _observe(self) -> None:
        """Let parts remember the last step. Where the recipe decides, not before all is planned that came before it."""
        if self._unheard is not None:
            outcome, self._unheard = self._unheard, None
            await self.assembly.method.observe_step(outcome)

    @property
    def state(self) -> dict[str, Any] | None:
        """What a checkpoint must know beside weights and optimiser. Where timing decides, the record knows it."""
        if not self.by_recipe or self._sampling is None:
            return None
        return self._sampling.stream.state(without=self._consumed)

    @property
    def memory(self) -> dict[str, Any]:
        """What the method's parts remember."""
        return self.assembly.method.state()

    def conclude(self) -> None:
        """See `Stage.conclude`."""
        if self._sampling is not None:
            self._sampling.collector.conclude()

    async def close(self) -> None:
        """Sampling stops; what was under way is on record."""
        await self._mixer.close()
        if self._sampling is not None:
            await self._sampling.stream.close()

    @property
    def collector(self) -> Collector | None:
        """What samples; None before it began."""
        return self._sampling.collector if self._sampling is not None else None

    def waits(self) -> list[tuple[str, str, float]]:
        """(who, what it waits for, seconds), the longest first."""
        what, since = self._doing
        waits = [("the learner", what, time.perf_counter() - since)]
        if self._sampling is not None:
            waits += self._sampling.collector.waits()
        return sorted(waits, key=lambda wait: -wait[2])

    async def _sample_under(self, version: int) -> None:
        """Let sampling go on under the weights of this version."""
        if self._sampling is None:
            await self._publish(version)
            self._sampling = self._begun(version)
        else:
            await self.settle()
            await self._publish(version)
            self._sampling.stream.advance(self._consumed, self._passed_over)
        self._consumed, self._passed_over = [], []

    def _begun(self, version: int) -> _Sampling:
        assembly, settings = self.assembly, self.settings
        actor = assembly.policy_actor(self.engine, temperature=assembly.resolved.recipe.rollout.temperature)
        collector = assembly.collector(actor, record=self.store, method=assembly.method)
        admission, following = admission_of(
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

    def _plan(self, number: int) -> Plan:
        seed, source = self.assembly.resolved.recipe.seed, self.assembly.source
        # the version it was let in at, whatever was made since
        live = self._sampling.stream.admission.live if self._sampling is not None else {}
        step = live.get(number, self.done)
        chosen = self.store.tasks.get(number)  # what was chosen before a kill was chosen
        if chosen is None and self.assembly.method.curriculum is not None:
            draw = derive_random(seed, "curriculum", number)
            chosen = self.assembly.method.curriculum.choose(source, self._first_task, number, step, draw)
        chosen = self._first_task + number if chosen is None else chosen
        task = chosen if isinstance(chosen, Task) else source.task(chosen)
        return Plan(task, derive_seed(seed, "rollout", number), number, f"group-{number}/", step, chosen)

    async def _groups(self, update: int) -> tuple[list[Group], list[Group], MixedGroups]:
        """Return the groups of an update, those that were sampled for it and did not count, and those of other sources.

        If the update was made before, they are those on record. Otherwise they are put on record.
        """
        numbers = self.store.consumed.get(update)
        if numbers is not None:
            beside = [self._on_record(number) for number in self.store.passed_over.get(update, ())]
            with self._waiting_for("other sources of groups"):
                mixed = await self._mixer.take(update, self.store.mixed)
            if self._sampling is None:
                return [self._on_record(number) for number in numbers], beside, mixed
            return await self._sampling.stream.take(numbers), beside, mixed
        assert self._sampling is not None
        stream, timeout, started = self._sampling.stream, self._deadline.seconds, time.perf_counter()
        self._mixer.request(update, self.store.mixed)
        with self._waiting_for("groups"):
            groups: list[Group] = await stream.batch(timeout_seconds=timeout)
        waited = time.perf_counter() - started
        if timeout is None or waited < timeout:
            self._deadline.add([waited])
        with self._waiting_for("other sources of groups"):
            mixed = await self._mixer.take(update, self.store.mixed)
        numbers = [group.number for group in groups]
        beside = [stream.passed_over[number] for number in stream.beside(numbers)]
        await asyncio.to_thread(self.store.sync)
        self.store.consume(update, numbers, [group.number for group in beside], mixed.spans)
        await asyncio.to_thread(self.store.sync)
        if update + 1 < self.settings.steps:
            self._mixer.request(update + 1, self.store.mixed)
        return groups, beside, mixed

    def _deadlines(self) -> dict[str, float]:
        collector, deadlines = self.collector, {"time/step_deadline": self._deadline}
        if isinstance(collector, Collector):
            deadlines |= {
                "time/turn_deadline": collector.turn_deadline,
                "time/group_deadline": collector.group_deadline,
            }
        return deadline_metrics(deadlines)

    def _on_record(self, number: int) -> Group:
        return self.store.load(number, self._plan(number).task)

    async def _make_room(self) -> None:
        """Where engine and learner share a device and take turns, the engine's keys go: new weights make them void."""
        takes_turns = self.settings.admit_ahead == 0 and self.assembly.policy.device.type != "cpu"
        if takes_turns and fulfils(self.engine, Sleeps):
            await self.engine.sleep()

    @property
    def version(self) -> int:
        """Of the weights that are being trained."""
        return self._version_of(self.done)

    def _version_of(self, update: int) -> int:
        """Of the weights an update begins with; they stay where nothing is learned."""
        return self.base_version + (update if self.learns else 0)

    @property
    def updating(self) -> bool:
        """Whether an update is under way, which is not to be cut."""
        return self._doing[0] == _UPDATE

    async def _publish(self, version: int) -> None:
        wanted = self._version_of(version)
        in_flight = "drain" if self.by_recipe else self.settings.in_flight
        members = [(member.engine, member.learner) for member in self.assembly.trained.values()]
        for engine, learner in ((self.engine, self.learner), *members):
            if engine.version != wanted:
                with self._waiting_for("the engine to take new weights"):
                    await publish(learner.weights(), engine, wanted, in_flight=in_flight)

    def _ages(self, groups: list[Group]) -> dict[str, float]:
        """How many updates the tokens that are learned from lie back."""
        now = self.version
        ages = [
            now - version
            for group in groups
            for trajectory in group.trajectories
            for turn in trajectory.turns
            for version in turn.action.versions
            if version >= 0
        ]
        if not ages:
            return {}
        oldest = max(ages)
        if oldest > self.settings.max_staleness:
            raise RunDirectoryError(
                f"update {self.done + 1}: a token lies {oldest} updates back, "
                f"more than reinforcement.max_staleness ({self.settings.max_staleness})"
            )
        return {"policy/staleness_mean": sum(ages) / len(ages), "policy/staleness_max": float(oldest)}

    def _quarantine_what_kills(self, update: int) -> None:
        attempts = self.store.begun.get(update, 0)
        if attempts >= _ATTEMPTS and update not in self.store.updated:
            self._put_aside(update, f"it was begun {attempts} times and never ended")

    def _put_aside(self, update: int, said: str) -> None:
        """The groups of an update are never drawn again."""
        said = f"update {update + 1}: {said}"
        self.store.fault("learner", said)
        self.store.say(f"{said}; its groups are quarantined, others take their place")
        numbers = self.store.quarantine(update)
        if self._sampling is not None:
            self._sampling.stream.discard(numbers)

    @contextlib.contextmanager
    def _waiting_for(self, what: str) -> Iterator[None]:
        """Report `what` as the wait of the learner while the block lasts; see `waits`."""
        self._doing = (what, time.perf_counter())
        try:
            yield
        finally:
            self._doing = ("nothing", time.perf_counter())

    @contextlib.contextmanager
    def _memory_reported(self) -> Iterator[None]:
        """Report a smaller token budget if an update within the block did not fit into memory."""
        before = self.learner.token_budget
        try:
            yield
        finally:
            if self.learner.token_budget < before:
                line = f"memory did not suffice; a forward pass has {self.learner.token_budget} tokens from now on"
                self.store.fault("out_of_memory", line)
                self.store.say(line)
