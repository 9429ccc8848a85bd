"""The seams of the scaling room: what a run asks of processes that are elsewhere, and what it hears from them.

A replica samples, a worker plays groups, a judge rewards. Where they are, who starts them and how calls travel, those
who ask do not know; `Gone` is all they hear of it.

Easy to get wrong: a call that ended in `Gone` may have been carried out all the same. What is asked here may be asked
again: a draw depends on its seed and place alone, and a group on its plan.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from whetstone.inference.protocol import (
        EngineAbilities,
        EngineStatistics,
        GenerateRequest,
        Generation,
        InFlight,
        Scores,
    )
    from whetstone.rollout.protocol import Plan, Strategy
    from whetstone.tokens import TokenSequence
    from whetstone.trajectory import Group, Score, Task, Trajectory, Turn


class Gone(Exception):
    """A process that was asked died, cannot be reached, or has only begun again and is not ready."""


class Restarting(Gone):
    """It died, and is on its way back."""


# ------------------------------------------------------------ engines


@dataclass(frozen=True, slots=True)
class Drawn:
    """A generation, and how its engine stands."""

    generation: Generation
    asked: int
    """Requests in the replica, of everyone, when it answered."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Weights on their way: those that changed since the version before, or all of them."""

    version: int
    since: int | None
    """The version it changes; None: it is whole, over the weights a replica was made with."""
    shelves: tuple[Any, ...]
    """Where the numbers lie, each a reference to a mapping of name → (array, the numbers' type)."""
    names: Mapping[str, tuple[int, int]]
    """Name → (which shelf it is on, its checksum)."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """An engine replica at one moment."""

    ready: bool
    """Whether it was given weights since it began; before that it draws for nobody."""
    version: int
    statistics: EngineStatistics
    abilities: EngineAbilities
    asked: int
    """Requests in it."""
    node: str
    """Where it is, by Ray's name of the node."""
    process: int
    """Its process id there."""


class Replica(Protocol):
    """One of several engines that draw from the same weights. All calls raise `Gone` where it cannot be asked."""

    @property
    def name(self) -> str:
        """For a person: `replica 0`."""
        ...

    async def generate(self, request: GenerateRequest) -> Drawn:
        """See `Engine.generate`."""
        ...

    async def score(self, tokens: TokenSequence, *, start: int) -> Scores:
        """See `Engine.score`."""
        ...

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """See `ReadsText.tokenize`; None where its engine reads no text."""
        ...

    async def load(self, parcel: Parcel, *, in_flight: InFlight) -> float:
        """Draw from these weights from now on. Seconds until all of them were there and had been checked.

        Raises:
            Gone: It is not at the version the parcel changes, as where it began again.
            EngineError: A checksum is another than was sent.
        """
        ...

    async def sleep(self) -> None:
        """See `Sleeps.sleep`; nothing where its engine cannot."""
        ...

    async def status(self) -> ReplicaStatus:
        """How it stands."""
        ...

    def abort(self, episode: str) -> None:
        """See `Engine.abort`. Not waited for."""
        ...

    def forget(self, episode: str) -> None:
        """See `Engine.forget`. Not waited for."""
        ...


# ------------------------------------------------------------ environments


@dataclass(frozen=True, slots=True)
class Work:
    """A group that a worker is to play."""

    plan: Plan
    strategy: Strategy | None
    """None: the recipe's own."""
    temperature: float
    at_evaluation: bool
    """Whether it is played as in an evaluation, rather than in training."""
    recorded: bool
    """Whether turns are to be told as they come about."""
    played: Mapping[str, Sequence[Turn]] = field(default_factory=dict)
    """By episode, the turns on record of it."""
    memory: bytes | None = None
    """What parts of the method remember, packed; None: what they did before."""


@dataclass(frozen=True, slots=True)
class TurnOver:
    """One more turn of an episode is over."""

    episode: str
    turn: Turn


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was told of an episode does not count: it is played again from its start."""

    episode: str


@dataclass(frozen=True, slots=True)
class PlaceFree:
    """An episode of the group is over; the others go on."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a group came to."""

    group: Group | None
    failure: Exception | None = None
    """What ended it instead."""


Event = TurnOver | Dropped | PlaceFree | Finished


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker at one moment."""

    running: int
    """Episodes under way."""
    queued: int
    """Episodes that wait for a place in it."""
    on_tools: float
    """Share of the running ones that wait for their environment."""
    retried: int
    moved: int
    """See `Collector.moved`."""
    waits: tuple[tuple[str, str, float], ...]
    """The longest of them, as of `Collector.waits`."""
    rerouted: int
    """Requests that were asked of another replica because one was gone."""
    judged: Mapping[str, float]
    """What its reward's judges were used for so far, as of `judge_metrics`."""
    busy_seconds: float
    """Of processor time it used so far."""
    node: str
    process: int


class Worker(Protocol):
    """Plays groups, many episodes at once."""

    @property
    def name(self) -> str:
        """For a person: `worker 0`."""
        ...

    def play(self, work: Work) -> AsyncGenerator[Sequence[Event], None]:
        """What becomes of a group, as it does; the last event is `Finished`.

        Raises:
            Gone: It cannot be asked any more; nothing of it plays the group.
        """
        ...

    async def status(self) -> WorkerStatus:
        """How it stands.

        Raises:
            Gone: It cannot be asked.
        """
        ...


# ------------------------------------------------------------ rewards


class Judge(Protocol):
    """Rewards elsewhere. All calls raise `Gone` where it cannot be asked."""

    @property
    def name(self) -> str:
        """For a person: `judge 0`."""
        ...

    async def judge(self, trajectory: Trajectory, task: Task, memory: bytes | None) -> Score:
        """See `Reward`."""
        ...

    async def compare(self, trajectories: Sequence[Trajectory], task: Task, memory: bytes | None) -> Sequence[Score]:
        """See `Compares`."""
        ...

    async def status(self) -> Mapping[str, float]:
        """What its judges were used for so far, as of `judge_metrics`, and its `process`."""
        ...


Say = Callable[[str], None]
