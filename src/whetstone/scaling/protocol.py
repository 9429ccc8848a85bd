"""Interfaces of remote processes: engine replicas, environment workers and judges.

A replica samples, a worker plays groups, a judge computes rewards. Callers do not depend on where these run, how they
start and how calls are sent. A call that fails for such a reason raises `ActorUnavailable`.

Note:
    A call that raised `ActorUnavailable` may have been executed nevertheless. Every call here can be repeated: a sample
    depends only on its seed and position, and a group only on its plan.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from whetstone.inference.protocol import (
        EngineCapabilities,
        EngineStatistics,
        GenerateRequest,
        Generation,
        InFlight,
        Scores,
    )
    from whetstone.rollout.protocol import Plan, Strategy
    from whetstone.tokens import TokenSequence
    from whetstone.trajectory import Group, Score, Task, Trajectory, Turn


class ActorUnavailable(Exception):
    """The called process died, is unreachable, or restarted and is not ready yet."""


class ActorRestarting(ActorUnavailable):
    """The called process died and is restarting."""


# ------------------------------------------------------------ engines


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A generation with the load of its replica."""

    generation: Generation
    num_requests: int
    """Number of requests in the replica, of all callers, when it responded."""


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """Weight update: the weights that changed since the previous version, or all of them."""

    version: int
    base_version: int | None
    """Version that the update changes; None: it is complete, relative to a replica's initial weights."""
    buffers: tuple[Any, ...]
    """References to mappings of name → (array, dtype) in shared memory."""
    names: Mapping[str, tuple[int, int]]
    """Name → (index of its buffer, checksum)."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Current status of an engine replica."""

    ready: bool
    """Whether it received weights since it started; until then it serves no requests."""
    version: int
    statistics: EngineStatistics
    capabilities: EngineCapabilities
    num_requests: int
    """Number of requests in it."""
    node: str
    """Ray's id of its node."""
    process: int
    """Process id on its node."""


class Replica(Protocol):
    """One of several engines with the same weights. All calls raise `ActorUnavailable` if it is unreachable."""

    @property
    def name(self) -> str:
        """Display name, such as `replica 0`."""
        ...

    async def generate(self, request: GenerateRequest) -> GenerationResult:
        """See `Engine.generate`."""
        ...

    async def score(self, tokens: TokenSequence, *, start: int) -> Scores:
        """See `Engine.score`."""
        ...

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """See `HasTokenizer.tokenize`; None if its engine does not accept text."""
        ...

    async def load(self, update: WeightUpdate, *, in_flight: InFlight) -> float:
        """Load weights.

        Returns:
            Seconds until all of them were received and checked.

        Raises:
            ActorUnavailable: It is not at the version that the update changes, for example after a restart.
            EngineError: A checksum differs.
        """
        ...

    async def sleep(self) -> None:
        """See `SupportsSleep.sleep`; no effect if its engine does not support it."""
        ...

    async def status(self) -> ReplicaStatus:
        """Return its current status."""
        ...

    def abort(self, episode: str) -> None:
        """See `Engine.abort`. Does not wait."""
        ...

    def forget(self, episode: str) -> None:
        """See `Engine.forget`. Does not wait."""
        ...


# ------------------------------------------------------------ environments


@dataclass(frozen=True, slots=True)
class Work:
    """A group for a worker to play."""

    plan: Plan
    strategy: Strategy | None
    """Rollout strategy; None: the recipe's own."""
    temperature: float
    at_evaluation: bool
    """Whether it is played as in an evaluation instead of in training."""
    recorded: bool
    """Whether turns are reported as they finish."""
    played: Mapping[str, Sequence[Turn]] = field(default_factory=dict)
    """Recorded turns by episode."""
    memory: bytes | None = None
    """Pickled state of components of the method; None: unchanged."""


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """A turn of an episode has finished."""

    episode: str
    turn: Turn


@dataclass(frozen=True, slots=True)
class EpisodeReset:
    """The reported turns of an episode are void: the episode restarts."""

    episode: str


@dataclass(frozen=True, slots=True)
class SlotFree:
    """An episode of the group has finished; others continue."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Result of a group."""

    group: Group | None
    failure: Exception | None = None
    """Error instead of a result."""


Event = TurnFinished | EpisodeReset | SlotFree | Finished


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Current status of a worker."""

    running: int
    """Number of running episodes."""
    queued: int
    """Number of episodes that wait for a slot."""
    on_tools: float
    """Fraction of the running episodes that wait for their environment."""
    retried: int
    moved: int
    """See `Collector.moved`."""
    waits: tuple[tuple[str, str, float], ...]
    """The longest waits; see `Collector.waits`."""
    rerouted: int
    """Number of requests that were sent to another replica because one was gone."""
    judged: Mapping[str, float]
    """Usage of its reward's judges so far; see `judge_metrics`."""
    busy_seconds: float
    """Processor time used so far, in seconds."""
    node: str
    process: int


class Worker(Protocol):
    """Plays groups, many episodes at once."""

    @property
    def name(self) -> str:
        """Display name, such as `worker 0`."""
        ...

    def play(self, work: Work) -> AsyncGenerator[Sequence[Event], None]:
        """Yield the events of a group as they happen; the last event is `Finished`.

        Raises:
            ActorUnavailable: It is unreachable, and has stopped playing the group.
        """
        ...

    async def status(self) -> WorkerStatus:
        """Return its current status.

        Raises:
            ActorUnavailable: It is unreachable.
        """
        ...


# ------------------------------------------------------------ rewards


class Judge(Protocol):
    """A remote reward. All calls raise `ActorUnavailable` if it is unreachable."""

    @property
    def name(self) -> str:
        """Display name, such as `judge 0`."""
        ...

    async def judge(self, trajectory: Trajectory, task: Task, memory: bytes | None) -> Score:
        """See `Reward`."""
        ...

    async def compare(self, trajectories: Sequence[Trajectory], task: Task, memory: bytes | None) -> Sequence[Score]:
        """See `GroupReward`."""
        ...

    async def status(self) -> Mapping[str, float]:
        """Return the usage of its judges so far (see `judge_metrics`), and its `process`."""
        ...


Notify = Callable[[str], None]
