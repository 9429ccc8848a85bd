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
    from whetstone.rollout.protocol import GroupPlan, Strategy
    from whetstone.tokens import TokenSequence
    from whetstone.trajectory import Group, Score, Task, Trajectory, Turn


class ActorUnavailable(Exception):
    """Error: the called process died, is unreachable, or restarted and is not ready yet."""


class ActorRestarting(ActorUnavailable):
    """Error: the called process died and is restarting, so a later call can succeed."""


# ------------------------------------------------------------ engines


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """Generation of a replica, with the load of the replica."""

    generation: Generation
    num_requests: int
    """Number of requests in the replica, of all callers, when it responded."""


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """Weight update for replicas: the weights that changed since the previous version, or all changed weights."""

    version: int
    """Version of the weights after the update."""
    base_version: int | None
    """Version that the update changes; None: the update is complete, relative to a replica's initial weights."""
    buffers: tuple[Any, ...]
    """References to buffers in shared memory: mappings of name → (array, dtype)."""
    names: Mapping[str, tuple[int, int]]
    """Weight name → (index of its buffer, checksum)."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Current status of an engine replica."""

    ready: bool
    """Whether the replica received weights since it started; until then it serves no requests."""
    version: int
    """Version of the replica's weights."""
    statistics: EngineStatistics
    capabilities: EngineCapabilities
    num_requests: int
    """Number of requests in the replica, of all callers."""
    node: str
    """Ray's id of the node on which the replica runs."""
    process: int
    """Process id of the replica on its node."""


class Replica(Protocol):
    """One of several inference engines with the same weights, in another process.

    All calls raise `ActorUnavailable` if the replica is unreachable.
    """

    @property
    def name(self) -> str:
        """Display name of the replica, such as `replica 0`."""
        ...

    async def generate(self, request: GenerateRequest) -> GenerationResult:
        """Sample one generation; see `Engine.generate`."""
        ...

    async def score(self, tokens: TokenSequence, *, start: int) -> Scores:
        """Compute the log-probs of given tokens; see `Engine.score`."""
        ...

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """Tokenize a text with the replica's tokenizer.

        Returns None if its engine does not accept text.
        """
        ...

    async def load(self, update: WeightUpdate, *, in_flight: InFlight) -> float:
        """Load a weight update.

        Args:
            update: Weights that changed.
            in_flight: Handling of running requests; see `Engine.load_weights`.

        Returns:
            Seconds until all weights were received and checked.

        Raises:
            ActorUnavailable: The replica is not at the version that the update changes, for example after a restart.
            EngineError: A checksum differs.
        """
        ...

    async def sleep(self) -> None:
        """Release the memory of the engine until the next weights.

        No effect if the engine does not support sleeping.
        """
        ...

    async def status(self) -> ReplicaStatus:
        """Return the current status of the replica."""
        ...

    def abort(self, episode: str) -> None:
        """Abort the running generation of an episode; see `Engine.abort`. Does not wait."""
        ...

    def forget(self, episode: str) -> None:
        """Release the KV cache of an episode; see `Engine.forget`. Does not wait."""
        ...


# ------------------------------------------------------------ environments


@dataclass(frozen=True, slots=True)
class Work:
    """Order for an environment worker: one group to play."""

    plan: GroupPlan
    strategy: Strategy | None
    """Rollout strategy; None: the recipe's own."""
    temperature: float
    """Sampling temperature."""
    at_evaluation: bool
    """Whether the group belongs to an evaluation instead of training."""
    recorded: bool
    """Whether the worker reports each turn when it finishes, for the run's record."""
    played: Mapping[str, Sequence[Turn]] = field(default_factory=dict)
    """Recorded turns by episode id, after which the episodes resume."""
    memory: bytes | None = None
    """Pickled state of the method's components; None: unchanged since the previous group."""


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """Event of a group: a turn of an episode has finished."""

    episode: str
    turn: Turn


@dataclass(frozen=True, slots=True)
class EpisodeReset:
    """Event of a group: an episode restarts, so that its reported turns are void."""

    episode: str


@dataclass(frozen=True, slots=True)
class SlotFree:
    """Event of a group: an episode has finished, and others continue."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Last event of a group: its result, or the error of its strategy."""

    group: Group | None
    failure: Exception | None = None
    """Error that the worker raised instead of a result; None after success."""


Event = TurnFinished | EpisodeReset | SlotFree | Finished


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Current status of an environment worker."""

    running: int
    """Number of running episodes."""
    queued: int
    """Number of episodes that wait for a slot of the worker."""
    on_tools: float
    """Fraction of the running episodes that wait for their environment, from 0 to 1."""
    retried: int
    """Number of episodes played again after a failure of the infrastructure."""
    moved: int
    """Progress counter; see `Collector.moved`."""
    waits: tuple[tuple[str, str, float], ...]
    """Longest current waits: (episode, component, seconds); see `Collector.waits`."""
    rerouted: int
    """Number of requests that were sent to another replica because the chosen one was gone."""
    judged: Mapping[str, float]
    """Usage of the reward's judges so far; see `judge_metrics`."""
    busy_seconds: float
    """Processor time of the worker so far, in seconds."""
    node: str
    process: int


class Worker(Protocol):
    """Environment worker in another process, which plays groups with many concurrent episodes."""

    @property
    def name(self) -> str:
        """Display name of the worker, such as `worker 0`."""
        ...

    def play(self, work: Work) -> AsyncGenerator[Sequence[Event], None]:
        """Play a group and yield its events as they happen; the last event is `Finished`.

        Raises:
            ActorUnavailable: The worker is unreachable, and has stopped playing the group.
        """
        ...

    async def status(self) -> WorkerStatus:
        """Return the current status of the worker.

        Raises:
            ActorUnavailable: The worker is unreachable.
        """
        ...


# ------------------------------------------------------------ rewards


class RemoteReward(Protocol):
    """Reward worker in another process. All calls raise `ActorUnavailable` if it is unreachable."""

    @property
    def name(self) -> str:
        """Display name of the reward worker, such as `judge 0`."""
        ...

    async def judge(self, trajectory: Trajectory, task: Task, memory: bytes | None) -> Score:
        """Score one trajectory; see `Reward`.

        Args:
            trajectory: Finished trajectory.
            task: Task of the trajectory.
            memory: Pickled state of the reward; None: unchanged, or the reward has no state.
        """
        ...

    async def compare(self, trajectories: Sequence[Trajectory], task: Task, memory: bytes | None) -> Sequence[Score]:
        """Score the trajectories of a group in comparison with each other; see `GroupReward.compared`."""
        ...

    async def status(self) -> Mapping[str, float]:
        """Return the usage of the reward's judges so far (see `judge_metrics`), and the process id as `process`."""
        ...


Notify = Callable[[str], None]
