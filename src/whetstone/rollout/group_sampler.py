"""Group sampler: samples and forks the episodes of one group, with the hooks of the recipe's rollout components.

The sampler creates an `EpisodeRequest` for each episode. A request contains everything that the collector needs to play
the episode.

Note:
    An episode can fork from a running one. They share the turns that were finished at the time of the request. If the
    parent is later played again, because a server failed, the two episodes share no turns.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from whetstone.environments.protocol import SeatRequest
from whetstone.rollout.episode_inputs import EpisodeHooks, Fork
from whetstone.rollout.method import MethodComponents
from whetstone.rollout.protocol import (
    ContextTransform,
    EpisodeKey,
    GroupBudget,
    GroupPlan,
    Running,
    Siblings,
    Splice,
    Start,
    StartPrefix,
)
from whetstone.seeding import derive_random, derive_seed
from whetstone.tools import FrozenModel
from whetstone.trajectory import Costs, EndReason, RemovalScope, Task, Trajectory, Turn


@dataclass(slots=True)
class RunningEpisode:
    """Running episode of a group, whose turns can be read before it ends; see `Running`."""

    id: str
    turns: list[Turn] = field(default_factory=list)
    environment_seed: int = 0
    """Seed of the episode's environment."""
    snapshots: dict[int, Any] = field(default_factory=dict)
    """Snapshots of the environment by the number of turns before them."""
    task: asyncio.Task[Trajectory] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def turn(self, number: int) -> Turn | None:
        """Wait for the turn with this index and its observation; see `Running.turn`."""
        assert self.task is not None
        while len(self.turns) <= number and not self.task.done():
            self._changed.clear()
            changed = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait([changed, self.task], return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
        if len(self.turns) > number:
            return self.turns[number]
        turns = (await self.task).turns
        return turns[number] if len(turns) > number else None

    async def trajectory(self) -> Trajectory:
        """Wait for the trajectory of the whole episode, with its score; see `Running.trajectory`."""
        assert self.task is not None
        return await asyncio.shield(self.task)

    @property
    def turns_so_far(self) -> tuple[Turn, ...]:
        """Return the turns that have finished so far; all turns if the episode has ended."""
        assert self.task is not None
        return self.task.result().turns if self.task.done() else tuple(self.turns)

    def observe(self, turn: Turn) -> None:
        """Append a finished turn and wake up callers of `turn`."""
        self.turns.append(turn)
        self._changed.set()

    def forget(self) -> None:
        """Discard all turns, because the episode restarts after a failure."""
        self.turns.clear()


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """Request of a group sampler to play one episode, with all inputs that the collector needs."""

    id: str
    task: Task
    seed: int
    hooks: EpisodeHooks
    begins: Callable[[], Awaitable[Fork | None]]
    """Function that returns the fork point at which the episode starts; None: the reset state. It is awaited when the
    episode has its slot, because an expert may have to be played first in that slot."""
    max_turns: int
    """Number of turns after which the episode ends or pauses."""
    whole_turns: int
    """Number of turns after which an unpaused episode of the group ends."""
    parent: str | None = None
    """Id of the episode that this one forks from; None: no fork."""
    shared: tuple[Turn, ...] = ()
    """Turns that the episode shares with its parent."""
    greedy: bool = False
    seat: SeatRequest | None = None
    """Seat of the episode in a game of several players; None: the policy is the only player."""
    hinted: bool = False
    """Whether the episode has a context transform that the other episodes of its group do not have."""

    @property
    def role(self) -> str:
        """Return the name of the role that the episode plays.

        The result is empty if the policy is the only player.
        """
        return self.seat.role if self.seat is not None else ""

    def only_pauses(self, trajectory: Trajectory) -> bool:
        """Return whether the trajectory ended by a temporary limit of turns, after which the strategy continues it.

        A paused episode is not scored.
        """
        return trajectory.ended is EndReason.MAX_TURNS and len(trajectory.turns) < self.whole_turns

    def annotate_trajectory(self, trajectory: Trajectory, fork: Fork | None) -> Trajectory:
        """Return the trajectory with its parent, its role, and the marks `started_later` and `hinted` if they apply."""
        count = len(self.shared)
        marks = trajectory.marks
        if self.parent is not None and trajectory.turns[:count] == self.shared:
            trajectory = replace(trajectory, parent=self.parent, fork_turn=count)
        elif fork is not None and self.parent is None and "not_forked" not in marks:
            marks = (*marks, "started_later")
        if self.hinted:
            marks = (*marks, "hinted")
        return replace(trajectory, marks=marks, role=self.role)


EpisodePlayer = Callable[[EpisodeRequest], Awaitable[Trajectory]]
"""Function that plays a requested episode when a slot is free and returns its trajectory, scored unless the episode
only pauses."""


class GroupSampler:
    """Samples the episodes of one group; the implementation of `Roller` that strategies receive.

    `Collector` creates one per group and closes it when the strategy returns.

    Args:
        plan: Group to sample.
        play: Function that plays a requested episode.
        method: Rollout components that apply to each episode.
        max_turns: Maximum number of turns per episode, unless the recipe's budget allocation sets another one.
        encode: Function that tokenizes a text.
        demonstrate: Function that plays an episode for a start state: that of the frozen model that it receives, or of
            the expert for None.
        group_size: Number of episodes, unless the recipe's budget allocation sets another one.
    """

    def __init__(
        self,
        plan: GroupPlan,
        play: EpisodePlayer,
        *,
        method: MethodComponents,
        max_turns: int,
        encode: Callable[[str], tuple[int, ...]],
        demonstrate: Callable[[FrozenModel | None], Awaitable[Trajectory]],
        group_size: int = 1,
    ) -> None:
        self.plan, self.method = plan, method
        self.episode_key = EpisodeKey(plan.task, plan.seed, plan.step, 0, group_size)
        allowance = method.allocate(self.episode_key) if method.allocate is not None else GroupBudget()
        self.max_turns = max_turns if allowance.max_turns is None else allowance.max_turns
        """See `Roller.max_turns`."""
        self.costs = Costs()
        """Costs of all its episodes, including discarded ones."""
        self._play, self._encode, self._demonstrate = play, encode, demonstrate
        self._group_size = allowance.group_size
        self._siblings = Siblings()
        self._running: dict[str, RunningEpisode] = {}
        self._start: asyncio.Task[StartPrefix | None] | None = None

    @property
    def occasion(self) -> EpisodeKey:
        """Return `episode_key`, by its name in earlier releases."""
        warnings.warn("Roller.occasion was renamed to Roller.episode_key", DeprecationWarning, stacklevel=2)
        return self.episode_key

    def samples(self, usual: int) -> int:
        """Return the number of trajectories of the group; see `Roller.samples`."""
        size = usual if self._group_size is None else self._group_size
        self.episode_key = replace(self.episode_key, group_size=size)
        return size

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Tokenize a text with the policy's tokenizer; see `Roller.tokenize`."""
        return self._encode(text)

    def written(self, text: str) -> tuple[int, ...]:
        """Tokenize a text; the name of `tokenize` in earlier releases."""
        warnings.warn("Roller.written was renamed to Roller.tokenize", DeprecationWarning, stacklevel=2)
        return self.tokenize(text)

    def random(self, index: int) -> Random:
        """Return a random generator for decisions about the sample with this index; see `Roller.random`."""
        return derive_random(self.plan.seed, self.plan.task.id, "strategy", index)

    async def sample(
        self,
        task: Task,
        *,
        index: int,
        greedy: bool = False,
        view: ContextTransform | None = None,
        max_turns: int | None = None,
        seat: str = "",
        table: int | None = 0,
    ) -> Trajectory:
        """Sample one whole episode and score it; see `Roller.sample`."""
        begun = self._begin(index, greedy=greedy, view=view, max_turns=max_turns, seat=seat, table=table)
        return await begun.trajectory()

    async def fork(
        self,
        task: Task,
        parent: Trajectory,
        *,
        turns: int,
        index: int,
        splice: Splice | None = None,
        max_turns: int | None = None,
    ) -> Trajectory:
        """Sample an episode that shares its first turns with another one, and score it; see `Roller.fork`."""
        begun = self._begin(
            index, parent=self._running[parent.id], shared=parent.turns[:turns], splice=splice, max_turns=max_turns
        )
        return await begun.trajectory()

    def begin(self, task: Task, *, index: int, parent: Running | None = None, turns: int = 0) -> RunningEpisode:
        """Start an episode or a fork whose turns can be read while it runs; see `Roller.begin`."""
        if parent is None:
            return self._begin(index)
        assert isinstance(parent, RunningEpisode)
        return self._begin(index, parent=parent, shared=parent.turns_so_far[:turns])

    def _begin(
        self,
        index: int,
        *,
        parent: RunningEpisode | None = None,
        shared: tuple[Turn, ...] = (),
        splice: Splice | None = None,
        greedy: bool = False,
        view: ContextTransform | None = None,
        max_turns: int | None = None,
        seat: str = "",
        table: int | None = 0,
    ) -> RunningEpisode:
        running = RunningEpisode(f"{self.plan.name}{self.plan.task.id}#{index}")
        request = EpisodeRequest(
            running.id,
            self.plan.task,
            derive_seed(self.plan.seed, self.plan.task.id, index),
            self._hooks(running, index, view),
            partial(self._started, running, index)
            if parent is None
            else partial(_parted, running, parent, shared, splice),
            max_turns=self.max_turns if max_turns is None else min(self.max_turns, max_turns),
            whole_turns=self.max_turns,
            parent=parent.id if parent is not None else None,
            shared=shared,
            greedy=greedy,
            seat=self._seat(seat, index, table) if seat else None,
            hinted=view is not None,
        )
        self._running[running.id] = running
        running.task = asyncio.ensure_future(self._played(request))
        return running

    async def _played(self, request: EpisodeRequest) -> Trajectory:
        try:
            trajectory = await self._play(request)
        finally:
            self.costs += request.hooks.costs
        if request.only_pauses(trajectory):
            return trajectory
        self._siblings.ended.append((len(trajectory.turns), trajectory.solved))
        return replace(trajectory, greedy=True, removal=RemovalScope.BEFORE_BASELINE) if request.greedy else trajectory

    async def close(self) -> None:
        """Cancel all running episodes of the group and wait until they have stopped."""
        tasks: list[asyncio.Task[Any] | None] = [self._start, *(running.task for running in self._running.values())]
        begun = [task for task in tasks if task is not None]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)

    async def demonstration(self, task: Task, *, model: FrozenModel | None = None) -> tuple[Trajectory, int]:
        """Play the expert's or a model's episode of the group's task; see `Demonstrator.demonstration`."""
        return await self._demonstrate(model), self._environment_seed(0)

    def _seat(self, role: str, index: int, table: int | None) -> SeatRequest:
        """Return the seat of a role in game number `table` of the group, or in a separate game if `table` is None."""
        seed = derive_seed(self.plan.seed, self.plan.task.id, "table", index if table is None else table)
        return SeatRequest(role, f"{self.plan.name}{self.plan.task.id}/{seed}" if table is not None else "", seed)

    def _hooks(self, running: RunningEpisode, index: int, view: ContextTransform | None) -> EpisodeHooks:
        """Return the context transforms, stops, rewrites and callbacks of one episode."""
        method = self.method
        return EpisodeHooks(
            episode_key=replace(self.episode_key, index=index),
            context_transforms=(*(method.context_transforms or {}).values(), *([view] if view is not None else [])),
            stops=tuple((method.stops or {}).items()),
            rewrites=tuple((method.rewrites or {}).values()),
            action_mask=method.action_mask,
            overflow=method.overflow,
            stop_control_fraction=method.stop_control_fraction,
            siblings=self._siblings,
            on_turn=running.observe,
            restarted=running.forget,
            snapshots=running.snapshots,
        )

    async def _started(self, running: RunningEpisode, index: int) -> Fork | None:
        """Return the start state that all episodes of the group share.

        Returns None if the episodes start from the reset state.
        """
        prefix = await self._prefix()
        running.environment_seed = prefix.environment_seed if prefix is not None else self._environment_seed(index)
        return None if prefix is None else Fork(prefix.turns, prefix.environment_seed)

    async def _prefix(self) -> StartPrefix | None:
        if self.method.start is None:
            return None
        if self._start is None:
            self._start = asyncio.ensure_future(self._compute_prefix(self.method.start))
        return await asyncio.shield(self._start)

    async def _compute_prefix(self, start: Start) -> StartPrefix | None:
        prefix = await start(self.episode_key, self)
        return prefix if prefix is not None and prefix.turns else None

    def _environment_seed(self, index: int) -> int:
        """Return the environment seed of the episode with this index that starts from the reset state."""
        return derive_seed(derive_seed(self.plan.seed, self.plan.task.id, index), "environment")


async def _parted(
    running: RunningEpisode, parent: RunningEpisode, shared: tuple[Turn, ...], splice: Splice | None
) -> Fork:
    """Return the fork point after the shared turns, in the state of the parent's environment."""
    running.environment_seed = parent.environment_seed
    return Fork(shared, parent.environment_seed, splice, parent.snapshots.get(len(shared)))
