"""What does Ray place? Each actor holds one thing of ours and hands calls on; each handle turns what Ray raises into
what we raise.

Easy to get wrong: an error that comes through Ray carries a traceback as its text. What was raised there is raised
here, as it was.
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

from whetstone.assembly.assembly import Assembly, assemble, judged_parts
from whetstone.errors import EngineError
from whetstone.inference.protocol import EngineAbilities, GenerateRequest, InFlight, Scores
from whetstone.plugins import search_also
from whetstone.policies import Policy
from whetstone.recipe import Resolved
from whetstone.rewards import Compares
from whetstone.rewards.judge_usage import judge_metrics
from whetstone.rollout.protocol import Stateful
from whetstone.sandbox.isolation import Isolation, hold_to
from whetstone.scaling.engine_replica import EngineReplica, ReplicaMaking
from whetstone.scaling.environment_worker import EnvironmentWorker, carried
from whetstone.scaling.policy_shape import with_room
from whetstone.scaling.protocol import (
    Drawn,
    Event,
    Finished,
    Gone,
    Parcel,
    ReplicaStatus,
    Restarting,
    Work,
    WorkerStatus,
)
from whetstone.scaling.published import Shelf
from whetstone.scaling.replicated_engine import ReplicatedEngine, Routing
from whetstone.scaling.spread_reward import ComparingSpreadReward, SpreadReward
from whetstone.tokens import TokenSequence
from whetstone.trajectory import Score, Task, Trajectory

T = TypeVar("T")


async def _answer(reference: Awaitable[T]) -> T:
    """What a call came to.

    Raises:
        Gone: Its actor died, or cannot be reached; `Restarting` where Ray is beginning it again.
        Exception: What the call raised there.
    """
    try:
        return await reference
    except RayTaskError as error:
        cause = error.cause
        raise (cause if isinstance(cause, Exception) else RuntimeError(str(cause))) from None
    except TaskCancelledError:
        raise Gone("the call was cancelled") from None
    except ActorUnavailableError as error:
        raise Restarting(_last_line(error)) from None
    except RayError as error:
        raise Gone(_last_line(error)) from None


def _last_line(error: RayError) -> str:
    """What an error of Ray's is about; it begins with a traceback where an actor's own beginning failed."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


async def _fetched(reference: Any) -> Shelf:
    """What lies in shared memory; it is not copied."""
    try:
        shelf: Shelf = await reference
        return shelf
    except RayError as error:
        raise EngineError(f"weights did not come: {type(error).__name__}") from None


def _search(folders: Sequence[str]) -> None:
    for folder in folders:
        search_also(Path(folder))


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())


# ------------------------------------------------------------ engines


class ReplicaActor:
    """An `EngineReplica` where Ray put it."""

    def __init__(self, making: ReplicaMaking, policy: Policy) -> None:
        _search(making.folders)
        self.replica = EngineReplica(making, policy, fetched=_fetched, node=_node())

    async def generate(self, request: GenerateRequest) -> Drawn:
        """See `Replica`."""
        return await self.replica.generate(request)

    async def score(self, tokens: TokenSequence, start: int) -> Scores:
        """See `Replica`."""
        return await self.replica.score(tokens, start=start)

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """See `Replica`."""
        return await self.replica.tokenize(text)

    async def load(self, parcel: Parcel, in_flight: InFlight) -> float:
        """See `Replica`."""
        return await self.replica.load(parcel, in_flight)

    async def sleep(self) -> None:
        """See `Replica`."""
        await self.replica.sleep()

    async def status(self) -> ReplicaStatus:
        """See `Replica`. Where its engine has given up, the process ends, and Ray begins another."""
        if not self.replica.alive:
            os._exit(1)
        return await self.replica.status()

    async def abort(self, episode: str) -> None:
        """See `Replica`."""
        self.replica.abort(episode)

    async def forget(self, episode: str) -> None:
        """See `Replica`."""
        self.replica.forget(episode)

    async def close(self) -> None:
        """Let go of the engine."""
        await self.replica.close()


@functools.cache
def _actor_named(name: str) -> Any:
    """One that is there; a failure is not remembered."""
    try:
        return ray.get_actor(name)
    except ValueError:
        raise Gone("it was not placed yet") from None


@dataclass(frozen=True, slots=True)
class RayReplica:
    """See `Replica`. It can be sent to whoever is to ask, before it is placed where it has a name in Ray."""

    placed: Any
    """The actor, or the name Ray knows it by."""
    name: str

    @property
    def actor(self) -> Any:
        """To be called.

        Raises:
            Gone: It was not placed yet.
        """
        return _actor_named(self.placed) if isinstance(self.placed, str) else self.placed

    async def generate(self, request: GenerateRequest) -> Drawn:
        """See `Replica`. Cancelling the call abandons the generation."""
        reference = self.actor.generate.remote(request)
        try:
            return await _answer(reference)
        except BaseException as error:
            if not isinstance(error, Exception):
                ray.cancel(reference)
            raise

    async def score(self, tokens: TokenSequence, *, start: int) -> Scores:
        """See `Replica`."""
        return await _answer(self.actor.score.remote(tokens, start))

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """See `Replica`."""
        return await _answer(self.actor.tokenize.remote(text))

    async def load(self, parcel: Parcel, *, in_flight: InFlight) -> float:
        """See `Replica`."""
        return await _answer(self.actor.load.remote(parcel, in_flight))

    async def sleep(self) -> None:
        """See `Replica`."""
        await _answer(self.actor.sleep.remote())

    async def status(self) -> ReplicaStatus:
        """See `Replica`."""
        return await _answer(self.actor.status.remote())

    def abort(self, episode: str) -> None:
        """See `Replica`."""
        with contextlib.suppress(Gone):
            self.actor.abort.remote(episode)

    def forget(self, episode: str) -> None:
        """See `Replica`."""
        with contextlib.suppress(Gone):
            self.actor.forget.remote(episode)

    async def close(self) -> None:
        """Let go of its engine, and of a server that it started."""
        await _answer(self.actor.close.remote())


# ------------------------------------------------------------ environments


@dataclass(frozen=True, slots=True)
class WorkerMaking:
    """All it takes to make a worker, wherever that is."""

    resolved: Resolved
    replicas: tuple[RayReplica, ...]
    late: tuple[RayReplica, ...]
    """Those that may begin later."""
    judges: tuple[RayJudge, ...]
    abilities: EngineAbilities
    places: int
    patience_seconds: float
    routing: Routing
    folders: tuple[str, ...]
    """In which modules of the recipe are looked for."""
    isolation: Isolation | None
    """What foreign code is kept in where the run's own process is, and must be kept in everywhere."""


class WorkerActor:
    """An `EnvironmentWorker` where Ray put it."""

    def __init__(self, making: WorkerMaking, policy: Policy) -> None:
        torch.set_num_threads(1)  # nothing is computed here
        _search(making.folders)
        hold_to(making.isolation)
        assembly = assemble(making.resolved, with_room(policy))
        engine = ReplicatedEngine(
            making.replicas,
            late=making.late,
            abilities=making.abilities,
            patience_seconds=making.patience_seconds,
            routing=making.routing,
        )
        reward = _judged_elsewhere(assembly, making) if making.judges else None
        self.worker = EnvironmentWorker(assembly, engine, reward=reward, places=making.places, node=_node())

    async def play(self, work: Work) -> AsyncGenerator[Sequence[Event], None]:
        """See `Worker`."""
        async for events in self.worker.play(work):
            yield events

    async def status(self) -> WorkerStatus:
        """See `Worker`."""
        self.worker.engine.look_for_late_ones()  # here an event loop runs
        return await self.worker.status()


def _judged_elsewhere(assembly: Assembly, making: WorkerMaking) -> SpreadReward:
    own = assembly.reward
    kind = ComparingSpreadReward if isinstance(own, Compares) else SpreadReward

    def memory() -> bytes | None:
        return pickle.dumps(own.state()) if isinstance(own, Stateful) else None

    return kind(making.judges, memory=memory, patience_seconds=making.patience_seconds)


@dataclass(frozen=True, slots=True)
class RayWorker:
    """See `Worker`."""

    actor: Any
    name: str

    async def play(self, work: Work) -> AsyncGenerator[Sequence[Event], None]:
        """See `Worker`."""
        stream, over = self.actor.play.options(num_returns="streaming").remote(work), False
        try:
            while not over:
                try:
                    reference = await anext(stream)
                except StopAsyncIteration:
                    return
                except RayError as error:
                    raise Gone(_last_line(error)) from None
                events = await _answer(reference)
                over = isinstance(events[-1], Finished)
                yield events
        except Gone:
            over = True
            raise
        finally:
            if not over:  # nobody waits for it any more
                ray.cancel(stream)

    async def status(self) -> WorkerStatus:
        """See `Worker`."""
        return await _answer(self.actor.status.remote())


# ------------------------------------------------------------ rewards


class JudgeActor:
    """The recipe's reward where Ray put it."""

    def __init__(self, resolved: Resolved, folders: Sequence[str], isolation: Isolation | None) -> None:
        torch.set_num_threads(1)
        _search(folders)
        hold_to(isolation)
        _, _, self.reward = judged_parts(resolved)
        self._memory: bytes | None = None

    async def judge(self, trajectory: Trajectory, task: Task, memory: bytes | None) -> Score:
        """See `Judge`."""
        self._remember(memory)
        return await _carried(self.reward(trajectory, task))

    async def compare(self, trajectories: Sequence[Trajectory], task: Task, memory: bytes | None) -> Sequence[Score]:
        """See `Judge`."""
        self._remember(memory)
        assert isinstance(self.reward, Compares)
        return await _carried(self.reward.compared(trajectories, task))

    async def status(self) -> dict[str, float]:
        """See `Judge`."""
        return {**judge_metrics(self.reward), "process": float(os.getpid())}

    def _remember(self, memory: bytes | None) -> None:
        if memory is not None and memory != self._memory and isinstance(self.reward, Stateful):
            self._memory = memory
            self.reward.load_state(pickle.loads(memory))  # from the run's own process


async def _carried(judging: Awaitable[T]) -> T:
    """What it says; what it raises in a form that can travel."""
    try:
        return await judging
    except (Exception, SystemExit) as failure:
        raise carried(failure if isinstance(failure, Exception) else RuntimeError(f"SystemExit: {failure}")) from None


@dataclass(frozen=True, slots=True)
class RayJudge:
    """See `Judge`."""

    actor: Any
    name: str

    async def judge(self, trajectory: Trajectory, task: Task, memory: bytes | None) -> Score:
        """See `Judge`."""
        return await _answer(self.actor.judge.remote(trajectory, task, memory))

    async def compare(self, trajectories: Sequence[Trajectory], task: Task, memory: bytes | None) -> Sequence[Score]:
        """See `Judge`."""
        return await _answer(self.actor.compare.remote(list(trajectories), task, memory))

    async def status(self) -> Mapping[str, float]:
        """See `Judge`."""
        return await _answer(self.actor.status.remote())
