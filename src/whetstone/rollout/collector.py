"""How are many episodes run at once? As coroutines, a bounded number of them, each scored as it ends.

    was:  GroupStream ⇄ Collector ⇄ PlannedGroup     each called the other back
    is:   GroupStream → plans → Collector → outcomes, in the order they finish → GroupStream
          Collector → strategy → GroupSampler → EpisodeRequest → play → Trajectory → GroupSampler
    Here: places, deadlines, retries, records, scores, status. A group knows of it one function, `play`; it knows of a
    group its requests, and of who consumes its groups nothing.

A group starts only when a place is free and nobody waits for one, so tasks may be endless. An episode that
waits for a tool costs a coroutine; nothing waits for the slowest.

Easy to get wrong: an episode that failed is not an episode that scored 0. Where the ending is not valid, or
the reward cannot tell, there is no score, and the trajectory is removed before any statistic.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from whetstone.causes import Beginning, cause_of
from whetstone.chat import Chat, Message
from whetstone.contracts import fulfils
from whetstone.environments.protocol import Environment, Observation, StepResult
from whetstone.errors import InfrastructureError, PromptTooLong, RecipeError
from whetstone.rewards import Compares, Reward, compared, scored
from whetstone.rollout.actors import PolicyActor
from whetstone.rollout.admission import Admission
from whetstone.rollout.deadlines import GroupClock, MeasuredDeadline
from whetstone.rollout.episode_inputs import Fork, Limits
from whetstone.rollout.group_sampler import EpisodeRequest, GroupSampler
from whetstone.rollout.method import Method
from whetstone.rollout.optional import Sized
from whetstone.rollout.protocol import Action, Actor, ActorInput, EpisodeRecord, Plan, Strategy
from whetstone.rollout.runner import run_episode
from whetstone.rollout.status import RolloutStatus, Watch
from whetstone.seeding import derive_seed
from whetstone.tool_calls import ToolWatch
from whetstone.tools.threads import call_user_function
from whetstone.trajectory import Author, EndReason, Group, RemovalScope, Task, Tokens, Trajectory, Turn
from whetstone.waiting import DeadlinePassed, Waits, collect_waits, finish_within, waiting_for

_LONGEST_BACK_OFF = 10.0


@dataclass(slots=True)
class Collector:
    """Everything an episode needs, but the task.

    Strategies sample through it, by a `GroupSampler` each.
    """

    environment: Callable[[], Environment]
    """Makes a fresh environment for each episode."""
    actor: Actor
    chat: Chat
    reward: Reward
    limits: Limits
    max_in_flight: int
    """Episodes running at once."""
    infrastructure_retries: int = 2
    """How often an episode is played again that a server, sandbox or engine failed; then it is invalid."""
    back_off_seconds: float = 0.1
    """How long it waits before it is played again; twice as long each time."""
    busy_seconds: Callable[[], float] | None = None
    """For how long the engine has computed in all; for the status alone."""
    record: EpisodeRecord | None = None
    """Where turns are written down as they come about."""
    turn_deadline: MeasuredDeadline = field(default_factory=MeasuredDeadline)
    """Of one action and the answer to it."""
    group_deadline: MeasuredDeadline = field(default_factory=MeasuredDeadline)
    """From a group's first episode; those under way then end by `timeout`, with the turns they have."""
    reward_timeout_seconds: float | None = None
    """Of judging an episode, or a group where the reward compares; then there is no score."""
    method: Method = field(default_factory=Method)
    """What is done around each episode."""
    others: Mapping[str, Actor] = field(default_factory=dict)
    """Who plays in a seat instead, by role."""
    expert: Actor | None = None
    """Who shows how a task is done, where a start asks for it."""
    tool_watch: ToolWatch | None = None
    """Receives every attempt of an episode."""
    freed: Callable[[], None] | None = None
    """Told in the task of each episode when it is over and its place free; not where it only pauses."""
    _places: asyncio.Semaphore = field(init=False)
    _vacant: asyncio.Event = field(init=False)
    too_long: int = field(default=0, init=False)
    """Tasks whose prompts leave no room for an answer."""
    _watch: Watch = field(init=False)
    _beginning: Beginning = field(init=False)
    _room: Beginning = field(init=False)

    def __post_init__(self) -> None:
        if self.max_in_flight < 1:
            raise ValueError(f"max_in_flight: one or more, got {self.max_in_flight}")
        self._places = asyncio.Semaphore(self.max_in_flight)
        self._vacant = asyncio.Event()
        self._vacant.set()
        self._watch = Watch()
        self._beginning, self._room = Beginning(), Beginning("tasks", "fits into the model's context")

    async def sample(self, plan: Plan, *, index: int = 0) -> Trajectory:
        """One whole episode of the planned group, scored; see `Roller.sample`.

        A task whose prompt leaves no room for an answer ends by `context_full`, without a turn and without a score.

        Raises:
            NothingScoredError: None of the first few dozen episodes could be scored.
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

    async def group(self, plan: Plan, strategy: Strategy) -> Group:
        """All trajectories of one plan, and what they cost.

        Raises:
            PromptTooLong: The task's prompt leaves no room for an answer.
            NothingScoredError: None of the first few dozen episodes could be scored.
        """
        clock = GroupClock(self.group_deadline.seconds)
        sampler = self._sampler(plan, strategy.group_size if fulfils(strategy, Sized) else 1, clock)
        try:
            group = await strategy(plan.task, sampler)
        finally:  # where one raised, the task is at fault: nobody goes on with it
            await sampler.close()
        if not clock.is_over:
            self.group_deadline.add([clock.spent])
        with self._watched(f"{plan.name}{plan.task.id}"), waiting_for("its reward"):
            trajectories = await compared(
                self.reward, group.trajectories, plan.task, seconds=self.reward_timeout_seconds
            )
        if isinstance(self.reward, Compares):
            for before, after in zip(group.trajectories, trajectories, strict=True):
                if before.score is not None:
                    self._beginning.see(None if after.score is not None else cause_of(after))
        return replace(group, trajectories=trajectories, number=plan.number, costs=sampler.costs)

    async def groups(
        self, plans: Iterable[Plan], strategy: Strategy, *, admission: Admission | None = None
    ) -> AsyncIterator[Group]:
        """The group of each plan, in the order they finish. `plans` is read as places become free. The group of a task
        whose prompt leaves no room for an answer has no trajectory, and is counted in `too_long`.

        Args:
            strategy: How the trajectories of each come about.
            admission: Asked before each group, so that sampling does not run too far ahead of learning.

        Raises:
            WhetstoneError: Nothing can be played, or scored; those that finished before it were handed on, the others
                are cancelled.
        """

        async def admitted() -> AsyncGenerator[Plan]:
            for plan in plans:
                if admission is not None:
                    await admission.enter(plan.number)
                yield plan

        async with aclosing(self.outcomes(admitted(), strategy)) as outcomes:
            async for outcome in outcomes:
                if isinstance(outcome.failure, PromptTooLong):
                    self._leave_out(outcome.failure)
                    yield Group(outcome.plan.task, (), outcome.plan.number)
                elif outcome.failure is not None:
                    raise outcome.failure
                else:
                    self._room.see(None)
                    yield outcome.group

    async def outcomes(self, plans: AsyncGenerator[Plan], strategy: Strategy) -> AsyncGenerator[GroupOutcome]:
        """What each plan came to, in the order they finish; whoever asks decides what a failure means.

        Args:
            plans: Asked for the next one when there is a place for it; it may let wait. Where it fails, that is raised
                behind what was begun before. It is closed at the end.
            strategy: How the trajectories of each come about.
        """
        running: set[asyncio.Task[GroupOutcome]] = set()
        finished: asyncio.Queue[asyncio.Task[GroupOutcome] | None] = asyncio.Queue()
        # a strategy may think before it samples; no more groups are open than could all run
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
                    for _ in range(5):  # until its samples have asked for their places
                        await asyncio.sleep(0)
                    await room()

        feeder = asyncio.create_task(feed())
        feeder.add_done_callback(lambda _: finished.put_nowait(None))
        try:
            while not (feeder.done() and not running and finished.empty()):
                group = await finished.get()
                if group is not None:
                    yield await group
            await feeder  # raises where the source of the plans failed
        finally:
            left = [feeder, *running]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            while not finished.empty():  # what came behind a failure is not said again
                group = finished.get_nowait()
                if group is not None and not group.cancelled():
                    group.exception()

    @property
    def moved(self) -> int:
        """A count that grows with everything an engine or environment gets done."""
        return self._watch.moved

    def waits(self) -> list[tuple[str, str, float]]:
        """(episode, what it waits for, seconds), the longest first."""
        now = time.perf_counter()
        doing = [(episode, waits.current()) for episode, waits in list(self._watch.doing.items())]
        waits = [(episode, current[0], now - current[1]) for episode, current in doing if current is not None]
        return sorted(waits, key=lambda wait: -wait[2])

    def status(self) -> RolloutStatus:
        """What is going on right now."""
        return self._watch.status(self.busy_seconds() if self.busy_seconds is not None else None)

    def conclude(self) -> None:
        """No more episodes are to come.

        Raises:
            NothingScoredError: There were some, and none could be scored.
        """
        self._beginning.conclude()

    async def _outcome(self, plan: Plan, strategy: Strategy) -> GroupOutcome:
        try:
            return GroupOutcome(plan, await self.group(plan, strategy))
        except Exception as failure:  # a strategy is foreign code, whatever it raises
            return GroupOutcome(plan, Group(plan.task, (), plan.number), failure)

    def _sampler(self, plan: Plan, group_size: int = 1, clock: GroupClock | None = None) -> GroupSampler:
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
        """See `EpisodePlayer`."""
        self._watch.queued += 1
        self._vacant.clear()
        try:
            await self._places.acquire()
        finally:
            self._watch.queued -= 1
        self._see_vacancy()
        with self._watched(request.id):
            over = True
            try:
                clock.start()
                with waiting_for("its start state"):
                    fork = await request.begins()
                trajectory = await self._attempts(request, fork, clock)
                over = not request.only_pauses(trajectory)
            finally:
                self._places.release()
                self._see_vacancy()
                if over and self.freed is not None:
                    self.freed()
            trajectory = request.placed(trajectory, fork)
            if request.only_pauses(trajectory):
                return trajectory
            with waiting_for("its reward"):
                trajectory = await scored(self.reward, trajectory, request.task, seconds=self.reward_timeout_seconds)
        if trajectory.ended is not EndReason.TIMEOUT:
            self.turn_deadline.add(turn.generation_seconds + turn.environment_seconds for turn in trajectory.turns)
        self._see(trajectory)
        return trajectory

    @contextmanager
    def _watched(self, name: str) -> Iterator[None]:
        """Show the watchdog the waits of the block."""
        waits = self._watch.doing[name] = Waits(self._watch.advance)
        try:
            with collect_waits(waits):
                yield
        finally:
            self._watch.doing.pop(name, None)

    async def _demonstrated(self, plan: Plan) -> Trajectory:
        """The expert's episode of the planned task; not scored.

        Raises:
            RecipeError: There is no expert.
        """
        if self.expert is None:
            needed = "needs the turns of an expert, and the task source has none; choose one with an expert"
            raise RecipeError(f"rollout.start_states: {needed}")
        return await run_episode(
            plan.task,
            environment=await self._make(),
            actor=self.expert,
            chat=self.chat,
            limits=replace(self.limits, turn_timeout_seconds=self.turn_deadline.seconds),
            id=f"{plan.name}{plan.task.id}#expert-0",
            seed=derive_seed(plan.seed, plan.task.id, 0),
        )

    def _leave_out(self, failure: PromptTooLong) -> None:
        self.too_long += 1
        self._room.see(str(failure))

    def _see(self, trajectory: Trajectory) -> None:
        if trajectory.score is None:
            if trajectory.ended is not EndReason.ABORTED:
                self._beginning.see(cause_of(trajectory))
        elif not isinstance(self.reward, Compares):  # that says no more before the group is whole
            self._beginning.see(None)

    def _see_vacancy(self) -> None:
        if self._watch.queued == 0 and not self._places.locked():
            self._vacant.set()
        else:
            self._vacant.clear()

    async def _attempts(self, request: EpisodeRequest, fork: Fork | None, clock: GroupClock) -> Trajectory:
        """Play the episode, again where what failed was not its own."""
        id = request.id
        # who sits at a table cannot begin again by himself
        retries, record = (0, None) if request.seat is not None else (self.infrastructure_retries, self.record)
        limits = replace(self.limits, turn_timeout_seconds=self.turn_deadline.seconds)
        for attempt in range(retries + 1):
            if attempt:
                with waiting_for("another attempt"):
                    await asyncio.sleep(min(_LONGEST_BACK_OFF, self.back_off_seconds * 2 ** (attempt - 1)))
                if record is not None:
                    record.drop(id)
                request.hooks.restarted()
            running, actor = self._watch.begin(), self.others.get(request.role, self.actor)
            try:
                trajectory = await run_episode(
                    request.task,
                    environment=await self._made(),
                    actor=_WatchedActor(actor, self._watch),
                    chat=self.chat,
                    limits=clock.bound(replace(limits, max_turns=request.max_turns)),
                    id=id,
                    seed=request.seed,
                    record=record,
                    fork=fork,
                    greedy=request.greedy,
                    around=request.hooks,
                    seat=request.seat,
                )
            except BaseException:
                self._watch.drop(running)
                raise
            if isinstance(actor, PolicyActor) and actor.member:
                trajectory = replace(trajectory, member=actor.member)
            if self.tool_watch is not None:
                self.tool_watch.see(trajectory)
            if trajectory.ended is not EndReason.INFRASTRUCTURE or attempt == retries or clock.is_over:
                break
            self._watch.drop(running)
            self._watch.retried += 1
        self._watch.end(running, trajectory.action_tokens)
        return trajectory

    async def _make(self) -> Environment:
        """Make an environment with the method's wrapper, in a thread: its constructor and those of tools may block."""
        made: Environment = await finish_within(
            self.limits.timeout_seconds, call_user_function(self.environment), owner="its environment (constructor)"
        )
        wrap = self.method.environment_wrapper
        return wrap(made, self._judged) if wrap is not None else made

    async def _made(self) -> Environment:
        """Make an environment; if that fails, one that says why when the episode begins."""
        try:
            return await self._make()
        except DeadlinePassed as late:
            return _Unmade(InfrastructureError(str(late)))
        except (Exception, SystemExit) as failure:
            return _Unmade(failure)

    async def _judged(self, task: Task, actions: Sequence[Message]) -> float | None:
        """See `Judge`."""
        nothing = Tokens.written((), Author.ENVIRONMENT)
        turns = tuple(Turn(nothing, nothing, message) for message in actions)
        score = await self.reward(Trajectory("judged", task.id, (), turns, EndReason.TERMINATED), task)
        if score.invalid:
            raise InfrastructureError(score.invalid)
        return float(score.success) if score.success is not None else score.value


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What a plan came to."""

    plan: Plan
    group: Group
    """Without a trajectory where it failed."""
    failure: Exception | None = None
    """What the strategy raised, `PromptTooLong` where the task leaves no room for an answer."""


def plans_of(tasks: Iterable[Task], *, seed: int, name: str = "") -> Iterator[Plan]:
    """A plan for each task, with the same seed; a task that stands here again has draws of its own."""
    seen: Counter[str] = Counter()
    for number, task in enumerate(tasks):
        again = seen[task.id]
        seen[task.id] += 1
        yield Plan(
            task,
            seed=derive_seed(seed, "again", again) if again else seed,
            number=number,
            name=f"{name}again-{again}/" if again else name,
        )


@dataclass(frozen=True, slots=True)
class _WatchedActor:
    """Counts how many episodes are with their actor, as against their tools."""

    actor: Actor
    watch: Watch

    async def act(self, moment: ActorInput) -> Action:
        self.watch.acting += 1
        try:
            return await self.actor.act(moment)
        finally:
            self.watch.acting -= 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.actor, name)  # other attributes of the actor

    def leave(self, episode: str) -> None:
        self.actor.leave(episode)


@dataclass(frozen=True, slots=True)
class _Unmade:
    """Stands for an environment that could not be made."""

    failure: BaseException

    async def reset(self, task: Task, *, seed: int) -> Observation:
        raise self.failure

    async def step(self, action: Message) -> StepResult:
        raise self.failure

    async def close(self) -> None:
        """Nothing is held."""
