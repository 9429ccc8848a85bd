"""Collector: runs many episodes concurrently as coroutines, up to a limit, and scores each one as it ends.

    GroupStream → plans → Collector → outcomes, in the order they finish → GroupStream
    Collector → strategy → GroupSampler → EpisodeRequest → play → Trajectory → GroupSampler

The collector manages episode slots, deadlines, retries, records, scores and status. A `GroupSampler` requests episodes
from it by a callback.

A group starts only when a slot is free and no episode waits for one, so the stream of tasks may be endless. An episode
that waits for a tool costs a coroutine, and no episode waits for the slowest one.

Note:
    A failed episode is not an episode with reward 0. If the end reason is invalid, or the reward cannot be computed,
    there is no score, and the trajectory is removed before any statistic.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from whetstone.capabilities import implements_protocol
from whetstone.chat import Chat, Message
from whetstone.environments.protocol import Environment, Observation, StepResult
from whetstone.errors import EngineError, InfrastructureError, PromptTooLong, RecipeError
from whetstone.failure_causes import StartupFailureMonitor, find_failure_cause
from whetstone.inference.protocol import EngineLoad, ReportsLoad
from whetstone.rewards import GroupReward, Reward, score_group, score_trajectory
from whetstone.rollout.actors import ModelActor, PolicyActor
from whetstone.rollout.concurrency import AdaptiveLimit, ConcurrencyController, EpisodeCancelled, EpisodeSlots
from whetstone.rollout.deadlines import GroupClock, MeasuredDeadline
from whetstone.rollout.episode_inputs import EpisodeLimits, Fork
from whetstone.rollout.group_sampler import EpisodeRequest, GroupSampler
from whetstone.rollout.method import MethodComponents
from whetstone.rollout.optional_protocols import HasGroupSize
from whetstone.rollout.protocol import Action, Actor, ActorInput, EpisodeRecord, GroupPlan, Strategy
from whetstone.rollout.runner import run_episode
from whetstone.rollout.staleness_control import Admission
from whetstone.rollout.status import RolloutStatus, Watch
from whetstone.seeding import derive_seed
from whetstone.tool_calls import ToolWatch
from whetstone.tools import FrozenModel
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import Author, EndReason, Group, RemovalScope, Task, Tokens, Trajectory, Turn
from whetstone.waiting import DeadlinePassed, Waits, collect_waits, finish_within, waiting_for

_LONGEST_BACK_OFF = 10.0
"""Maximum number of seconds before a retry of an episode."""


@dataclass(slots=True)
class Collector:
    """Plays episodes concurrently with one environment, actor and reward, and returns scored trajectories and groups.

    `RunComponents.collector` creates one for training and one for evaluations. A strategy samples through a
    `GroupSampler`, which the collector creates for each group.
    """

    environment: Callable[[], Environment]
    """Factory that creates a new environment for each episode."""
    actor: Actor
    chat: Chat
    reward: Reward
    limits: EpisodeLimits
    max_in_flight: int
    """Maximum number of concurrent episodes; with `concurrency`, the maximum of its limit."""
    concurrency: ConcurrencyController | None = None
    """Adapts the limit of concurrent episodes to the load of the policy's engine; None: the limit is fixed."""
    can_cancel: bool = True
    """Whether episodes are cancelled, and played again, if `concurrency` lowers the limit. False for tools with side
    effects, which a second attempt would repeat."""
    infrastructure_retries: int = 2
    """Number of retries of an episode after a failure of a server, sandbox or engine; after the last one the episode is
    invalid."""
    back_off_seconds: float = 0.1
    """Seconds before the first retry; doubled for each further retry, up to 10."""
    busy_seconds: Callable[[], float] | None = None
    """Function that returns the total seconds that the engine has computed; None: the status reports no engine load."""
    record: EpisodeRecord | None = None
    """Record of finished turns, from which episodes resume after a restart; None: turns are not recorded."""
    turn_deadline: MeasuredDeadline = field(default_factory=MeasuredDeadline)
    """Deadline of one turn: an action and its observation."""
    group_deadline: MeasuredDeadline = field(default_factory=MeasuredDeadline)
    """Deadline of a group, from the start of its first episode; then running episodes end by `timeout` with the turns
    so far."""
    reward_timeout_seconds: float | None = None
    """Deadline in seconds of the reward of an episode, or of a group for a group reward; after it there is no score."""
    method: MethodComponents = field(default_factory=MethodComponents)
    """Rollout components of the recipe, such as context transforms and stops."""
    others: Mapping[str, Actor] = field(default_factory=dict)
    """Actors that play instead of the policy, by the name of their role."""
    expert: Actor | None = None
    """Actor that plays demonstrations, which some start states require; None: the task source has no expert."""
    tool_watch: ToolWatch | None = None
    """Monitor of tool failures; receives the trajectory of every attempt."""
    freed: Callable[[], None] | None = None
    """Callback when an episode has ended and its slot is free; called in the task of the episode, but not after a
    pause."""
    _slots: EpisodeSlots = field(init=False)
    _adaptive: AdaptiveLimit | None = field(default=None, init=False)
    _num_started: int = field(default=0, init=False)
    _vacant: asyncio.Event = field(init=False)
    too_long: int = field(default=0, init=False)
    """Number of tasks left out because their prompts leave no room for a response."""
    _watch: Watch = field(init=False)
    _beginning: StartupFailureMonitor = field(init=False)
    _room: StartupFailureMonitor = field(init=False)

    def __post_init__(self) -> None:
        if self.max_in_flight < 1:
            raise ValueError(f"max_in_flight: must be at least 1, got {self.max_in_flight}")
        self._slots = EpisodeSlots(self.max_in_flight)
        if self.concurrency is not None:
            self._slots.limit = min(self.concurrency.limit, self.max_in_flight)
            self._adaptive = AdaptiveLimit(
                self.concurrency, self._slots, self._measure_load, on_change=self._see_vacancy
            )
        self._vacant = asyncio.Event()
        self._vacant.set()
        self._watch = Watch()
        self._beginning, self._room = (
            StartupFailureMonitor(),
            StartupFailureMonitor("tasks", "fits into the model's context"),
        )

    async def sample(self, plan: GroupPlan, *, index: int = 0) -> Trajectory:
        """Sample one whole episode of the planned group and score it; see `Roller.sample`.

        If the task's prompt leaves no room for a response, the trajectory has the end reason `context_full`, no turn
        and no score.

        Raises:
            NothingScoredError: If none of the first few dozen episodes could be scored.
        """
        sampler = self._sampler(plan)
        try:
            return await sampler.sample(plan.task, index=index)
        except PromptTooLong as failure:
            self._leave_out(failure)
            id, removal = f"{plan.name}{plan.task.id}#{index}", RemovalScope.BEFORE_BASELINE
            return Trajectory(id, plan.task.id, (), (), EndReason.CONTEXT_FULL, str(failure), removal=removal)
        finally:
            await sampler.close()

    async def group(self, plan: GroupPlan, strategy: Strategy) -> Group:
        """Sample and score all trajectories of one planned group with a strategy.

        The returned group has the costs of all its episodes, including discarded ones.

        Raises:
            PromptTooLong: If the task's prompt leaves no room for a response.
            NothingScoredError: If none of the first few dozen episodes could be scored.
        """
        clock = GroupClock(self.group_deadline.seconds)
        sampler = self._sampler(plan, strategy.group_size if implements_protocol(strategy, HasGroupSize) else 1, clock)
        try:
            group = await strategy(plan.task, sampler)
        finally:  # after an exception the task is at fault: no other episode of it runs
            await sampler.close()
        if not clock.is_over:
            self.group_deadline.add([clock.elapsed_seconds])
        with self._watched(f"{plan.name}{plan.task.id}"), waiting_for("its reward"):
            trajectories = await score_group(
                self.reward, group.trajectories, plan.task, seconds=self.reward_timeout_seconds
            )
        if isinstance(self.reward, GroupReward):
            for before, after in zip(group.trajectories, trajectories, strict=True):
                if before.score is not None:
                    self._beginning.record_result(None if after.score is not None else find_failure_cause(after))
        return replace(group, trajectories=trajectories, number=plan.number, costs=sampler.costs)

    async def groups(
        self, plans: Iterable[GroupPlan], strategy: Strategy, *, admission: Admission | None = None
    ) -> AsyncIterator[Group]:
        """Sample a group for each plan and yield the groups in the order in which they finish.

        `plans` is read as slots become free. If a task's prompt leaves no room for a response, its group has no
        trajectory and is counted in `too_long`.

        Args:
            plans: Groups to sample; may be endless.
            strategy: Strategy that samples the trajectories of each group.
            admission: Staleness control, awaited before each group, so that sampling does not run too far ahead of
                training.

        Raises:
            WhetstoneError: If no episode can be played or scored. Groups that finished before are yielded first, the
                others are cancelled.
        """

        async def admitted() -> AsyncGenerator[GroupPlan]:
            for plan in plans:
                if admission is not None:
                    await admission.admit_group(plan.number)
                yield plan

        async with aclosing(self.outcomes(admitted(), strategy)) as outcomes:
            async for outcome in outcomes:
                if isinstance(outcome.failure, PromptTooLong):
                    self._leave_out(outcome.failure)
                    yield Group(outcome.plan.task, (), outcome.plan.number)
                elif outcome.failure is not None:
                    raise outcome.failure
                else:
                    self._room.record_result(None)
                    yield outcome.group

    async def outcomes(self, plans: AsyncGenerator[GroupPlan], strategy: Strategy) -> AsyncGenerator[GroupOutcome]:
        """Sample a group for each plan and yield the outcomes in the order in which they finish.

        In contrast to `groups`, a failure is part of the outcome, and the caller handles it.

        Args:
            plans: Groups to sample, read when a slot is free; the generator may wait. An exception of the generator is
                raised after the running groups have finished. The generator is closed at the end.
            strategy: Strategy that samples the trajectories of each group.
        """
        running: set[asyncio.Task[GroupOutcome]] = set()
        finished: asyncio.Queue[asyncio.Task[GroupOutcome] | None] = asyncio.Queue()
        # a strategy may wait before it samples, so the number of open groups is limited, too
        open_groups = asyncio.Semaphore(self.max_in_flight)

        def hand_on(group: asyncio.Task[GroupOutcome]) -> None:
            running.discard(group)
            open_groups.release()
            finished.put_nowait(group)

        async def room() -> None:
            await open_groups.acquire()
            await self._vacant.wait()

        async def feed() -> None:
            async with aclosing(plans):
                await room()
                async for plan in plans:
                    group = asyncio.ensure_future(self._outcome(plan, strategy))
                    running.add(group)
                    group.add_done_callback(hand_on)
                    for _ in range(5):  # until its samples have requested their slots
                        await asyncio.sleep(0)
                    await room()

        feeder = asyncio.create_task(feed())
        feeder.add_done_callback(lambda _: finished.put_nowait(None))
        try:
            while not (feeder.done() and not running and finished.empty()):
                group = await finished.get()
                if group is not None:
                    yield await group
            await feeder  # raises the exception of `plans`
        finally:
            left = [feeder, *running]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            while not finished.empty():  # retrieve later exceptions, which are not raised
                group = finished.get_nowait()
                if group is not None and not group.cancelled():
                    group.exception()

    @property
    def moved(self) -> int:
        """Return a progress counter: the number of waits for engines, environments, tools and rewards that have ended.

        The watchdog compares two values to detect a run that hangs.
        """
        return self._watch.moved

    def waits(self) -> list[tuple[str, str, float]]:
        """Return the current waits of all episodes, the longest first.

        Returns:
            Tuples (episode id, name of the component that the episode waits for, seconds).
        """
        now = time.perf_counter()
        doing = [(episode, waits.current_wait()) for episode, waits in list(self._watch.doing.items())]
        waits = [(episode, current[0], now - current[1]) for episode, current in doing if current is not None]
        return sorted(waits, key=lambda wait: -wait[2])

    def status(self) -> RolloutStatus:
        """Return the current status: rates, running and queued episodes, stragglers."""
        return self._watch.status(self.busy_seconds() if self.busy_seconds is not None else None)

    def conclude(self) -> None:
        """Check, after the last episode, that at least one episode was scored.

        Raises:
            NothingScoredError: If there were episodes and none could be scored.
        """
        self._beginning.conclude()

    async def _outcome(self, plan: GroupPlan, strategy: Strategy) -> GroupOutcome:
        try:
            return GroupOutcome(plan, await self.group(plan, strategy))
        except Exception as failure:  # a strategy may raise anything
            return GroupOutcome(plan, Group(plan.task, (), plan.number), failure)

    def _sampler(self, plan: GroupPlan, group_size: int = 1, clock: GroupClock | None = None) -> GroupSampler:
        return GroupSampler(
            plan,
            partial(self._played, clock or GroupClock(self.group_deadline.seconds)),
            method=self.method,
            max_turns=self.limits.max_turns,
            encode=self.chat.encode,
            demonstrate=partial(self._demonstrated, plan),
            group_size=group_size,
        )

    async def _played(self, clock: GroupClock, request: EpisodeRequest) -> Trajectory:
        """Play a requested episode in a slot and score it; see `EpisodePlayer`."""
        self._watch.queued += 1
        self._vacant.clear()
        try:
            await self._slots.take_slot()
        finally:
            self._watch.queued -= 1
        self._see_vacancy()
        self._num_started += 1
        age = self._num_started
        with self._watched(request.id):
            over = True
            if self._adaptive is not None and self._adaptive.error is not None:
                self._slots.return_slot()
                raise self._adaptive.error
            try:
                clock.start()
                with waiting_for("its start state"):
                    fork = await request.begins()
                trajectory = await self._attempts(request, fork, clock, age)
                over = not request.only_pauses(trajectory)
            finally:
                self._slots.return_slot()
                self._see_vacancy()
                if over and self.freed is not None:
                    self.freed()
            trajectory = request.annotate_trajectory(trajectory, fork)
            if request.only_pauses(trajectory):
                return trajectory
            with waiting_for("its reward"):
                trajectory = await score_trajectory(
                    self.reward, trajectory, request.task, seconds=self.reward_timeout_seconds
                )
        if trajectory.ended is not EndReason.TIMEOUT:
            self.turn_deadline.add(turn.generation_seconds + turn.environment_seconds for turn in trajectory.turns)
        self._see(trajectory)
        return trajectory

    @contextmanager
    def _watched(self, name: str) -> Iterator[None]:
        """Register the block's waits under a name, so that the watchdog and `waits` can report them."""
        waits = self._watch.doing[name] = Waits(self._watch.advance)
        try:
            with collect_waits(waits):
                yield
        finally:
            self._watch.doing.pop(name, None)

    async def _demonstrated(self, plan: GroupPlan, model: FrozenModel | None) -> Trajectory:
        """Play the episode of the expert, or of a model, of the planned task, without a score.

        Raises:
            RecipeError: If the expert must play, and the task source has none.
        """
        guide = self.expert if model is None else ModelActor(model, self.chat)
        if guide is None:
            needed = "needs an expert, and the task source has none; choose a source with an expert"
            raise RecipeError(f"rollout.start_states: {needed}")
        return await run_episode(
            plan.task,
            environment=await self._make(),
            actor=guide,
            chat=self.chat,
            limits=replace(self.limits, turn_timeout_seconds=self.turn_deadline.seconds),
            id=f"{plan.name}{plan.task.id}#expert-0",
            seed=derive_seed(plan.seed, plan.task.id, 0),
        )

    def _leave_out(self, failure: PromptTooLong) -> None:
        self.too_long += 1
        self._room.record_result(str(failure))

    def _see(self, trajectory: Trajectory) -> None:
        if trajectory.score is None:
            if trajectory.ended is not EndReason.ABORTED:
                self._beginning.record_result(find_failure_cause(trajectory))
        elif not isinstance(self.reward, GroupReward):  # a group reward is computed when the group is complete
            self._beginning.record_result(None)

    async def _measure_load(self) -> EngineLoad:
        engine = self.actor.engine if isinstance(self.actor, PolicyActor) else None
        if engine is None or not implements_protocol(engine, ReportsLoad):
            raise EngineError(
                "rollout.max_in_flight: auto requires an engine that reports its load (measure_load); set a number"
            )
        return await engine.measure_load()

    def concurrency_metrics(self) -> dict[str, float]:
        """Return the metrics of the adaptive limit; empty if the limit is fixed."""
        return self._adaptive.metrics() if self._adaptive is not None else {}

    def _see_vacancy(self) -> None:
        if self._watch.queued == 0 and not self._slots.is_full:
            self._vacant.set()
        else:
            self._vacant.clear()

    async def _played_whole(
        self,
        request: EpisodeRequest,
        play: Callable[[], Coroutine[Any, Any, Trajectory]],
        record: EpisodeRecord | None,
        age: int,
    ) -> tuple[int, Trajectory]:
        """Play an attempt, again from the start each time that it is cancelled because the limit shrank.

        Returns:
            The number of the attempt in the status, and its trajectory.
        """
        can_cancel = self._adaptive is not None and self.can_cancel and request.seat is None
        while True:
            running = self._watch.begin()
            try:
                return running, await (self._slots.run_attempt(age, play()) if can_cancel else play())
            except EpisodeCancelled:
                self._watch.drop(running)
            except BaseException:
                self._watch.drop(running)
                raise
            if record is not None:
                record.drop(request.id)
            request.hooks.restarted()
            with waiting_for("a slot"):
                self._watch.queued += 1
                try:
                    await self._slots.yield_slot()
                finally:
                    self._watch.queued -= 1
            self._see_vacancy()

    async def _attempts(self, request: EpisodeRequest, fork: Fork | None, clock: GroupClock, age: int) -> Trajectory:
        """Play the episode; retry after failures of the infrastructure, with exponential back-off.

        An attempt that is cancelled because the limit shrank is repeated from the start, and not counted.
        """
        id = request.id
        # one player of a game cannot restart without the others
        retries, record = (0, None) if request.seat is not None else (self.infrastructure_retries, self.record)
        limits = replace(self.limits, turn_timeout_seconds=self.turn_deadline.seconds)
        for attempt in range(retries + 1):
            if attempt:
                with waiting_for("another attempt"):
                    await asyncio.sleep(min(_LONGEST_BACK_OFF, self.back_off_seconds * 2 ** (attempt - 1)))
                if record is not None:
                    record.drop(id)
                request.hooks.restarted()
            actor = self.others.get(request.role, self.actor)

            async def play(actor: Actor = actor) -> Trajectory:
                return await run_episode(
                    request.task,
                    environment=await self._try_make(),
                    actor=_WatchedActor(actor, self._watch, self._adaptive),
                    chat=self.chat,
                    limits=clock.limit_episode(replace(limits, max_turns=request.max_turns)),
                    id=id,
                    seed=request.seed,
                    record=record,
                    fork=fork,
                    greedy=request.greedy,
                    hooks=request.hooks,
                    seat=request.seat,
                )

            running, trajectory = await self._played_whole(request, play, record, age)
            if isinstance(actor, PolicyActor) and actor.member:
                trajectory = replace(trajectory, member=actor.member)
            if self.tool_watch is not None:
                self.tool_watch.record_episode(trajectory)
            if trajectory.ended is not EndReason.INFRASTRUCTURE or attempt == retries or clock.is_over:
                break
            self._watch.drop(running)
            self._watch.retried += 1
        self._watch.end(running, trajectory.action_tokens)
        return trajectory

    async def _make(self) -> Environment:
        """Create an environment and wrap it with the method's wrapper.

        Runs in a thread, because constructors of environments and tools may block.
        """
        environment: Environment = await finish_within(
            self.limits.timeout_seconds, call_user_function(self.environment), owner="its environment (constructor)"
        )
        wrap = self.method.environment_wrapper
        return wrap(environment, self._judged) if wrap is not None else environment

    async def _try_make(self) -> Environment:
        """Create an environment; after an error, return a placeholder whose `reset` raises that error.

        So a failing constructor ends only this episode, like any other error of an environment.
        """
        try:
            return await self._make()
        except DeadlinePassed as late:
            return _Unmade(InfrastructureError(str(late)))
        except (Exception, SystemExit) as failure:
            return _Unmade(failure)

    async def _judged(self, task: Task, actions: Sequence[Message]) -> float | None:
        """Compute the reward of the actions so far, for an environment wrapper; see `RewardCallback`."""
        nothing = Tokens.from_ids((), Author.ENVIRONMENT)
        turns = tuple(Turn(nothing, nothing, message) for message in actions)
        score = await self.reward(Trajectory("judged", task.id, (), turns, EndReason.TERMINATED), task)
        if score.invalid:
            raise InfrastructureError(score.invalid)
        return float(score.success) if score.success is not None else score.value


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """Result of one planned group: the group, or the exception that its sampling raised."""

    plan: GroupPlan
    group: Group
    """Sampled group; it has no trajectory if the sampling failed."""
    failure: Exception | None = None
    """Exception that the strategy raised; `PromptTooLong` if the task leaves no room for a response; None after
    success."""


def make_plans(tasks: Iterable[Task], *, seed: int, name: str = "") -> Iterator[GroupPlan]:
    """Yield a `GroupPlan` for each task; all have the same seed.

    A task id that occurs again gets another seed and another prefix of trajectory ids, so that its samples differ.
    """
    seen: Counter[str] = Counter()
    for number, task in enumerate(tasks):
        repeat = seen[task.id]
        seen[task.id] += 1
        yield GroupPlan(
            task,
            seed=derive_seed(seed, "again", repeat) if repeat else seed,
            number=number,
            name=f"{name}again-{repeat}/" if repeat else name,
        )


@dataclass(frozen=True, slots=True)
class _WatchedActor:
    """Actor wrapper that counts the episodes whose actor is generating, as opposed to those that wait for tools."""

    actor: Actor
    watch: Watch
    adaptive: AdaptiveLimit | None

    async def act(self, moment: ActorInput) -> Action:
        self.watch.acting += 1
        try:
            return await self.actor.act(moment)
        finally:
            self.watch.acting -= 1
            if self.adaptive is not None:
                self.adaptive.count_turn()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.actor, name)  # other attributes of the actor

    def leave(self, episode: str) -> None:
        self.actor.leave(episode)


@dataclass(frozen=True, slots=True)
class _Unmade:
    """Placeholder for an environment whose constructor failed; `reset` and `step` raise the error."""

    failure: BaseException

    async def reset(self, task: Task, *, seed: int) -> Observation:
        raise self.failure

    async def step(self, action: Message) -> StepResult:
        raise self.failure

    async def close(self) -> None:
        """Do nothing: there is no environment to close."""
