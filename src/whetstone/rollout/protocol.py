"""The seams of the rollout room: who acts in an episode, and how a task's trajectories are sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from whetstone.chat import Context, Message, ToolSpec
from whetstone.trajectory import Group, Task, Tokens, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Action:
    """What an actor produced in one turn."""

    tokens: Tokens
    complete: bool = True
    """Whether the turn was ended by the actor rather than by a limit."""
    queue_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A group to be."""

    task: Task
    seed: int
    """With the task's id and a sample's index it decides the sample's draws."""
    number: int = 0
    """Its place among the groups of a run, in the order they are started."""
    name: str = ""
    """Begins the id of each of its trajectories, so that ids differ between groups."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What an actor knows when it is its turn."""

    task: Task
    context: Context
    conversation: Sequence[Message]
    tools: Sequence[ToolSpec]
    episode: str
    turn: int
    seed: int
    greedy: bool = False
    """Whether nothing is left to chance."""


class Actor(Protocol):
    """Whoever produces the actions of an episode: the policy in training, or an expert who shows how."""

    async def act(self, moment: Moment) -> Action:
        """The tokens of one turn."""
        ...

    def leave(self, episode: str) -> None:
        """The episode is over."""
        ...


class EpisodeRecord(Protocol):
    """Where turns are written down as they come about, so that an episode cut off by a kill can go on."""

    def played(self, episode: str) -> tuple[Turn, ...]:
        """The turns of an episode that was begun before, each with its observation; none for a new one."""
        ...

    def add(self, episode: str, turn: Turn) -> None:
        """One more turn is over, and its observation is there."""
        ...

    def drop(self, episode: str) -> None:
        """What was written of the episode does not count: it is played again from its start."""
        ...


class Roller(Protocol):
    """What a strategy may do: the primitives of rollout. Here so far: sample and fork."""

    async def sample(self, task: Task, *, index: int, greedy: bool = False) -> Trajectory:
        """One whole episode of `task`, scored; `index` tells it from its siblings and decides its seed.

        Args:
            greedy: Played without chance, to be compared with and not learned from.
        """
        ...

    async def fork(self, task: Task, parent: Trajectory, *, turns: int, index: int) -> Trajectory:
        """An episode that shares the first `turns` of its parent, the same objects, and goes on by itself; scored."""
        ...

    def random(self, index: int) -> Random:
        """Chance for what a strategy decides about the sample of this index."""
        ...


class Strategy(Protocol):
    """How the trajectories of one task come about."""

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """All trajectories of `task`."""
        ...
