"""Ray actors of replicas, workers and judges, and their handles, which convert Ray's errors.

Each actor contains one object and forwards calls to it.

Note:
    An error that Ray forwards has a traceback as its text. The handles raise the original error.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ray
import torch
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError, TaskCancelledError

from whetstone.assembly.assembly import RunComponents, assemble, build_scoring_components
from whetstone.errors import EngineError
from whetstone.inference.protocol import EngineCapabilities, GenerateRequest, InFlight, Scores
from whetstone.plugins import add_search_path
from whetstone.policies import Policy
from whetstone.recipe import Resolved
from whetstone.rewards import GroupReward
from whetstone.rewards.judge_usage import judge_metrics
from whetstone.rollout.protocol import Stateful
from whetstone.sandbox.isolation import Isolation, require_isolation
from whetstone.scaling.distributed_reward import DistributedGroupReward, DistributedReward
from whetstone.scaling.engine_replica import EngineReplica, ReplicaSpec
from whetstone.scaling.environment_worker import EnvironmentWorker, picklable_error
from whetstone.scaling.meta_model import allocate_parameters
from whetstone.scaling.protocol import (
    ActorRestarting,
    ActorUnavailable,
    Event,
    Finished,
    GenerationResult,
    ReplicaStatus,
    WeightUpdate,
    Work,
    WorkerStatus,
)
from whetstone.scaling.replicated_engine import ReplicatedEngine, Routing
from whetstone.scaling.weight_broadcast import SharedBuffer
from whetstone.tokens import TokenSequence
from whetstone.trajectory import Score, Task, Trajectory

T = TypeVar("T")


async def _answer(reference: Awaitable[T]) -> T:
    """Await a call to a Ray actor and convert Ray's errors.

    Raises:
        ActorUnavailable: The actor died or is unreachable; `ActorRestarting` if Ray restarts it.
        Exception: Error that the call raised in the actor.
    """
    try:
        return await reference
    except RayTaskError as error:
        cause = error.cause
        raise (cause if isinstance(cause, Exception) else RuntimeError(str(cause))) from None
    except TaskCancelledError:
        raise ActorUnavailable("the call was cancelled") from None
    except ActorUnavailableError as error:
        raise ActorRestarting(_last_line(error)) from None
    except RayError as error:
        raise ActorUnavailable(_last_line(error)) from None


def _last_line(error: RayError) -> str:
    """Return the last line of a Ray error; the text starts with a traceback if the actor's constructor failed."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


async def _fetched(reference: Any) -> SharedBuffer:
    """Fetch a buffer from Ray's shared memory, without a copy.

    Raises:
        EngineError: The buffer cannot be fetched.
    """
    try:
        buffer: SharedBuffer = await reference
        return buffer
    except RayError as error:
        raise EngineError(f"weights could not be fetched: {type(error).__name__}") from None


def _search(folders: Sequence[str]) -> None:
    for folder in folders:
        add_search_path(Path(folder))


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())


# ------------------------------------------------------------ engines


class ReplicaActor:
    """Ray actor that runs an `EngineReplica` and forwards calls to it."""

    def __init__(self, making: ReplicaSpec, policy: Policy) -> None:
        _search(making.folders)
        self.replica = EngineReplica(making, policy, fetched=_fetched, node=_node())

    async def generate(self, request: GenerateRequest) -> GenerationResult:
        """Forward to `EngineReplica.generate`."""
        return await self.replica.generate(request)

    async def score(self, tokens: TokenSequence, start: int) -> Scores:
        """Forward to `EngineReplica.score`."""
        return await self.replica.score(tokens, start=start)

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """Forward to `EngineReplica.tokenize`."""
        return await self.replica.tokenize(text)

    async def load(self, update: WeightUpdate, in_flight: InFlight) -> float:
        """Forward to `EngineReplica.load`."""
        return await self.replica.load(update, in_flight)

    async def sleep(self) -> None:
        """Forward to `EngineReplica.sleep`."""
        await self.replica.sleep()

    async def status(self) -> ReplicaStatus:
        """Return the replica's status.

        If its engine has given up, the process exits, and Ray starts another one.
        """
        if not self.replica.alive:
            os._exit(1)
        return await self.replica.status()

    async def abort(self, episode: str) -> None:
        """Forward to `EngineReplica.abort`."""
        self.replica.abort(episode)

    async def forget(self, episode: str) -> None:
        """Forward to `EngineReplica.forget`."""
        self.replica.forget(episode)

    async def close(self) -> None:
        """Close the replica's engine, and an inference server that it started."""
        await self.replica.close()


@functools.cache
def _actor_named(name: str) -> Any:
    """Return the Ray actor with a name, cached; an exception is not cached.

    Raises:
        ActorUnavailable: The actor is not placed yet.
    """
    try:
        return ray.get_actor(name)
    except ValueError:
        raise ActorUnavailable("the replica was not placed yet") from None


@dataclass(frozen=True, slots=True)
class RayReplica:
    """Handle of a replica in a Ray actor; implements `Replica`.

    A handle with a name in Ray can be sent to callers before the actor is placed.
    """

    placed: Any
    """Actor handle, or the actor's name in Ray."""
    name: str
    """Display name of the replica, such as `replica 0`."""

    @property
    def actor(self) -> Any:
        """Ray actor to call, looked up by its name if it was placed later.

        Raises:
            ActorUnavailable: The actor is not placed yet.
        """
        return _actor_named(self.placed) if isinstance(self.placed, str) else self.placed

    async def generate(self, request: GenerateRequest) -> GenerationResult:
        """Sample one generation in the replica's process. Cancelling the call abandons the generation."""
        reference = self.actor.generate.remote(request)
        try:
            return await _answer(reference)
        except BaseException as error:
            if not isinstance(error, Exception):
                ray.cancel(reference)
            raise

    async def score(self, tokens: TokenSequence, *, start: int) -> Scores:
        """Compute the log-probs of given tokens in the replica's process."""
        return await _answer(self.actor.score.remote(tokens, start))

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """Tokenize a text in the replica's process; None if its engine does not accept text."""
        return await _answer(self.actor.tokenize.remote(text))

    async def load(self, update: WeightUpdate, *, in_flight: InFlight) -> float:
        """Have the replica load a weight update; return the seconds until all weights were received."""
        return await _answer(self.actor.load.remote(update, in_flight))

    async def sleep(self) -> None:
        """Have the replica release its engine's memory until the next weights."""
        await _answer(self.actor.sleep.remote())

    async def status(self) -> ReplicaStatus:
        """Request the replica's current status."""
        return await _answer(self.actor.status.remote())

    def abort(self, episode: str) -> None:
        """Send `abort` to the actor without waiting; no effect if it is unavailable."""
        with contextlib.suppress(ActorUnavailable):
            self.actor.abort.remote(episode)

    def forget(self, episode: str) -> None:
        """Send `forget` to the actor without waiting; no effect if it is unavailable."""
        with contextlib.suppress(ActorUnavailable):
            self.actor.forget.remote(episode)

    async def close(self) -> None:
        """Close the replica's engine, and an inference server that the replica started."""
        await _answer(self.actor.close.remote())


# ------------------------------------------------------------ environments


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Arguments to create an environment worker in any process."""

    resolved: Resolved
    replicas: tuple[RayReplica, ...]
    """Started engine replicas."""
    late: tuple[RayReplica, ...]
    """Replicas that may start later."""
    judges: tuple[RayJudge, ...]
    """Reward workers; empty: the worker computes rewards itself."""
    capabilities: EngineCapabilities
    places: int
    """Maximum number of concurrent episodes of the worker."""
    patience_seconds: float
    """Maximum number of seconds that a request waits if all replicas or reward workers are gone."""
    routing: Routing
    folders: tuple[str, ...]
    """Folders that are searched for modules that the recipe names."""
    isolation: Isolation | None
    """Isolation of third-party code in the run's own process, which every process must provide; None: no isolation."""


class WorkerActor:
    """Ray actor that runs an `EnvironmentWorker`."""

    def __init__(self, making: WorkerSpec, policy: Policy) -> None:
        torch.set_num_threads(1)  # nothing is computed here
        _search(making.folders)
        require_isolation(making.isolation)
        assembly = assemble(making.resolved, allocate_parameters(policy))
        engine = ReplicatedEngine(
            making.replicas,
            late=making.late,
            capabilities=making.capabilities,
            patience_seconds=making.patience_seconds,
            routing=making.routing,
        )
        reward = _judged_elsewhere(assembly, making) if making.judges else None
        self.worker = EnvironmentWorker(assembly, engine, reward=reward, places=making.places, node=_node())

    async def play(self, work: Work) -> AsyncGenerator[Sequence[Event], None]:
        """Play a group and yield its events; see `Worker.play`."""
        async for events in self.worker.play(work):
            yield events

    async def status(self) -> WorkerStatus:
        """Return the worker's status, and start to poll replicas that are not up."""
        self.worker.engine.look_for_late_ones()  # here an event loop runs
        return await self.worker.status()


def _judged_elsewhere(assembly: RunComponents, making: WorkerSpec) -> DistributedReward:
    own = assembly.reward
    kind = DistributedGroupReward if isinstance(own, GroupReward) else DistributedReward

    def memory() -> bytes | None:
        return pickle.dumps(own.state()) if isinstance(own, Stateful) else None

    return kind(making.judges, memory=memory, patience_seconds=making.patience_seconds)


@dataclass(frozen=True, slots=True)
class RayWorker:
    """Handle of an environment worker in a Ray actor; implements `Worker`."""

    actor: Any
    name: str

    async def play(self, work: Work) -> AsyncGenerator[Sequence[Event], None]:
        """Stream the events of a group from the actor; see `Worker.play`."""
        stream, over = self.actor.play.options(num_returns="streaming").remote(work), False
        try:
            while not over:
                try:
                    reference = await anext(stream)
                except StopAsyncIteration:
                    return
                except RayError as error:
                    raise ActorUnavailable(_last_line(error)) from None
                events = await _answer(reference)
                over = isinstance(events[-1], Finished)
                yield events
        except ActorUnavailable:
            over = True
            raise
        finally:
            if not over:  # the caller no longer waits for it
                ray.cancel(stream)

    async def status(self) -> WorkerStatus:
        """Request the worker's current status."""
        return await _answer(self.actor.status.remote())


# ------------------------------------------------------------ rewards


class JudgeActor:
    """Ray actor that computes the recipe's reward."""

    def __init__(self, resolved: Resolved, folders: Sequence[str], isolation: Isolation | None) -> None:
        torch.set_num_threads(1)
        _search(folders)
        require_isolation(isolation)
        _, _, self.reward = build_scoring_components(resolved)
        self._memory: bytes | None = None

    async def judge(self, trajectory: Trajectory, task: Task, memory: bytes | None) -> Score:
        """Score one trajectory with the recipe's reward; see `RemoteReward.judge`."""
        self._remember(memory)
        return await _carried(self.reward(trajectory, task))

    async def compare(self, trajectories: Sequence[Trajectory], task: Task, memory: bytes | None) -> Sequence[Score]:
        """Score the trajectories of a group with the recipe's group reward; see `RemoteReward.compare`."""
        self._remember(memory)
        assert isinstance(self.reward, GroupReward)
        return await _carried(self.reward.compared(trajectories, task))

    async def status(self) -> dict[str, float]:
        """Return the usage of the reward's judges and the process id."""
        return {**judge_metrics(self.reward), "process": float(os.getpid())}

    def _remember(self, memory: bytes | None) -> None:
        if memory is not None and memory != self._memory and isinstance(self.reward, Stateful):
            self._memory = memory
            self.reward.load_state(pickle.loads(memory))  # from the run's own process


async def _carried(judging: Awaitable[T]) -> T:
    """Await a result; errors are converted to a form that can be pickled."""
    try:
        return await judging
    except (Exception, SystemExit) as failure:
        raise picklable_error(
            failure if isinstance(failure, Exception) else RuntimeError(f"SystemExit: {failure}")
        ) from None


@dataclass(frozen=True, slots=True)
class RayJudge:
    """Handle of a reward worker in a Ray actor; implements `RemoteReward`."""

    actor: Any
    name: str

    async def judge(self, trajectory: Trajectory, task: Task, memory: bytes | None) -> Score:
        """Score one trajectory in the reward worker's process."""
        return await _answer(self.actor.judge.remote(trajectory, task, memory))

    async def compare(self, trajectories: Sequence[Trajectory], task: Task, memory: bytes | None) -> Sequence[Score]:
        """Score the trajectories of a group in the reward worker's process."""
        return await _answer(self.actor.compare.remote(list(trajectories), task, memory))

    async def status(self) -> Mapping[str, float]:
        """Request the usage of the reward worker's judges."""
        return await _answer(self.actor.status.remote())
