"""How does a run come to be spread? Replicas first, tried before anything relies on them; then who judges, then who
plays.

Easy to get wrong: what Ray starts outlives a mistake in the middle. Whatever was placed is let go where a later part
does not begin.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from whetstone.assembly.assembly import Assembly
from whetstone.compute_thread import run_in_compute_thread
from whetstone.errors import EngineError, RecipeError
from whetstone.inference.abilities import require
from whetstone.plugins import searched
from whetstone.policies import on_cpu
from whetstone.rollout import Collector, PolicyActor
from whetstone.sandbox.isolation import strongest
from whetstone.scaling.engine_replica import ReplicaMaking
from whetstone.scaling.gauges import RayGauges
from whetstone.scaling.policy_shape import shape_of
from whetstone.scaling.protocol import Gone, ReplicaStatus, Restarting, Say
from whetstone.scaling.published import Published
from whetstone.scaling.publishing_engine import PublishingEngine
from whetstone.scaling.ray_actors import (
    JudgeActor,
    RayJudge,
    RayReplica,
    RayWorker,
    ReplicaActor,
    WorkerActor,
    WorkerMaking,
)
from whetstone.scaling.ray_start import Demand, RunningRay, start_ray
from whetstone.scaling.replica_check import check_replica
from whetstone.scaling.replica_engine import engine_of
from whetstone.scaling.scale_metrics import ScaleMetrics
from whetstone.scaling.spread_collector import SpreadCollector
from whetstone.scaling.worker_pool import WorkerPool

_OVERHEAD = 64
"""Calls an actor answers beside one for each episode: statuses, weights."""
_FOR_EVER = -1
_CLOSING_SECONDS = 10.0
_RESTARTING_SECONDS = 0.25
"""Between two looks at what is on its way back."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """An actor, and what it was made from: Ray makes it from that again."""

    actor: Any
    given: tuple[Any, ...]


@dataclass(slots=True)
class RayCluster:
    """See `Cluster`."""

    assembly: Assembly
    engine: PublishingEngine
    pool: WorkerPool
    judges: Sequence[RayJudge]
    placed: Sequence[_Placed]
    running: RunningRay
    measured: ScaleMetrics = field(init=False)

    def __post_init__(self) -> None:
        gauges = RayGauges(self.assembly.resolved.name)
        self.measured = ScaleMetrics(self.engine, self.pool, self.judges, gauges)

    def spread(self, collector: Collector) -> Collector:
        """See `Cluster.spread`."""
        actor = collector.actor
        if not isinstance(actor, PolicyActor) or actor.engine is not self.engine:
            return collector
        return SpreadCollector(
            **{name: getattr(collector, name) for name in _given(Collector)},
            pool=self.pool,
            recipe_strategy=self.assembly.strategy,
            temperature=actor.sampling.temperature,
            at_evaluation=collector.method is not self.assembly.method,
        )

    def metrics(self) -> dict[str, float]:
        """See `Cluster.metrics`."""
        return self.measured.taken()

    async def close(self) -> None:
        """See `Cluster.close`."""
        await self.measured.close()
        await self.pool.close()
        await self.engine.close()
        seen = [seat.replica for seat in self.engine.seats if seat.status is not None]  # others were never placed
        closing = [_let_go(replica) for replica in seen if isinstance(replica, RayReplica)]
        await asyncio.gather(*closing)
        _end(self.placed)
        await asyncio.to_thread(self.running.close)


async def _let_go(replica: RayReplica) -> None:
    """End its engine, if it can still be asked."""
    with contextlib.suppress(Gone, TimeoutError):
        async with asyncio.timeout(_CLOSING_SECONDS):
            await replica.close()


async def begin_cluster(assembly: Assembly, *, version: int, say: Say) -> RayCluster:
    """Everything the recipe's `scale` asks for, begun and tried.

    Args:
        version: Of the policy's weights.
        say: Told what is placed, and later what dies and comes back.

    Raises:
        WhetstoneError: It does not fit, does not begin, or is not what the run relies on.
    """
    resolved, scale = assembly.resolved, assembly.resolved.recipe.scale
    if scale.colocated and assembly.policy.device.type == "cpu":
        raise resolved.error("scale.colocated", "the policy is computed on the CPU: there is no GPU to share")
    began = time.perf_counter()
    async with contextlib.AsyncExitStack() as undone:  # where a later part does not begin
        running = await asyncio.to_thread(start_ray, resolved, demand_of(assembly))
        undone.push_async_callback(asyncio.to_thread, running.close)
        placed: list[_Placed] = []
        undone.callback(_end, placed)
        making = _ReplicaPlacing(assembly, version, placed)
        replicas, statuses = await making.begun()
        judges = [
            RayJudge(
                _kind(placed, JudgeActor, scale.worker_cpus, 0.0, assembly).remote(resolved, searched(), strongest()),
                f"judge {k}",
            )
            for k in range(scale.reward_workers)
        ]
        begin = dict(assembly.policy.model.named_parameters())
        published = await run_in_compute_thread(lambda: Published(ray.put, begin, version=version))
        abilities = statuses[0].abilities
        engine = PublishingEngine(
            replicas,
            published,
            late=making.late,
            abilities=abilities,
            patience_seconds=scale.start_timeout_seconds,
            say=say,
            routing=scale.routing,
        )
        undone.push_async_callback(engine.close)
        engine.start()
        for replica in replicas:
            await check_replica(replica, assembly, timeout_seconds=scale.start_timeout_seconds)
        pool = await _workers(assembly, replicas, making.late, judges, statuses[0], placed, say)
        for judge in judges:
            await _begun(judge.status, judge.name, assembly)
        making.place_late_ones()  # now that what has to be there has its room
        undone.pop_all()
    pool.start()
    say(
        f"on Ray: {_of(len(replicas), 'engine replica')}, {_of(scale.environment_workers, 'environment worker')}, "
        f"{_of(len(judges), 'reward worker')} on {_of(len(_nodes(statuses, ray.nodes())), 'node')}, after "
        f"{time.perf_counter() - began:.0f} s"
    )
    return RayCluster(assembly, engine, pool, judges, placed, running)


def _end(placed: Sequence[_Placed]) -> None:
    """Let go of what was placed."""
    for each in placed:
        ray.kill(each.actor)


def demand_of(assembly: Assembly) -> Demand:
    """What a recipe asks of a cluster."""
    scale, model = assembly.resolved.recipe.scale, assembly.policy.model
    workers = scale.environment_workers + scale.reward_workers
    return Demand(
        cpus=workers * scale.worker_cpus + scale.engine_replicas * scale.replica_cpus,
        gpus=scale.engine_replicas * scale.tensor_parallel * scale.replica_gpus,
        model_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
        trained_bytes=sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad),
        replicas=scale.engine_replicas,
    )


class _ReplicaPlacing:
    """Where a run's replicas come from: those it begins with, and those that may join it."""

    def __init__(self, assembly: Assembly, version: int, placed: list[_Placed]) -> None:
        scale = assembly.resolved.recipe.scale
        self.assembly, self.version, self.placed = assembly, version, placed
        run, first = secrets.token_hex(8), scale.engine_replicas
        self.late = [
            RayReplica(f"whetstone-{run}-replica-{k}", f"replica {k}")
            for k in range(first, first + scale.late_replicas)
        ]
        """Known by their names before they are placed."""
        policy = replace(assembly.policy, model=on_cpu(assembly.policy.model), critic=None)
        self._sent = ray.put(policy)

    async def begun(self) -> tuple[list[RayReplica], list[ReplicaStatus]]:
        """(those it begins with, how they stand), none with weights to draw from yet."""
        assembly = self.assembly
        count = assembly.resolved.recipe.scale.engine_replicas
        replicas = [RayReplica(self._placed(k), f"replica {k}") for k in range(count)]
        statuses = await asyncio.gather(*(_begun(replica.status, replica.name, assembly) for replica in replicas))
        for status in statuses:
            _check_abilities(assembly, status)
        return replicas, list(statuses)

    def place_late_ones(self) -> None:
        """Have Ray begin those that may join as soon as it has room for them."""
        first = self.assembly.resolved.recipe.scale.engine_replicas
        for k, replica in enumerate(self.late, start=first):
            self._placed(k, name=replica.placed)

    def _placed(self, number: int, **more: Any) -> Any:
        assembly = self.assembly
        scale = assembly.resolved.recipe.scale
        making = ReplicaMaking(
            assembly.resolved,
            engine_of(assembly, number),
            on_gpu=scale.replica_gpus > 0 or scale.colocated,
            threads=max(1, int(scale.replica_cpus)),
            version=self.version,
            folders=tuple(searched()),
        )
        gpus = scale.replica_gpus * scale.tensor_parallel
        kind = _kind(self.placed, ReplicaActor, scale.replica_cpus, gpus, assembly, **more)
        return kind.remote(making, self._sent)


async def _workers(
    assembly: Assembly,
    replicas: Sequence[RayReplica],
    late: Sequence[RayReplica],
    judges: Sequence[RayJudge],
    status: ReplicaStatus,
    placed: list[_Placed],
    say: Say,
) -> WorkerPool:
    """The pool of workers: all begun that it begins with; those that may join are placed when there is room."""
    recipe = assembly.resolved.recipe
    scale, places = recipe.scale, math.ceil(recipe.rollout.max_in_flight / recipe.scale.environment_workers)
    # a worker computes nothing, and may be where there is no device of the policy's
    resolved = assembly.resolved.with_changes({"policy.device": "cpu", "policy.dtype": "float32"})
    making = WorkerMaking(
        resolved,
        tuple(replicas),
        tuple(late),
        tuple(judges),
        status.abilities,
        places,
        patience_seconds=scale.start_timeout_seconds,
        routing=scale.routing,
        folders=tuple(searched()),
        isolation=strongest(),
    )
    sent = await asyncio.to_thread(ray.put, shape_of(assembly.policy))

    def worker(k: int) -> RayWorker:
        return RayWorker(
            _kind(placed, WorkerActor, scale.worker_cpus, 0.0, assembly).remote(making, sent), f"worker {k}"
        )

    first = scale.environment_workers
    workers = [worker(k) for k in range(first)]
    await asyncio.gather(*(_begun(each.status, each.name, assembly) for each in workers))
    return WorkerPool(
        workers,
        late=[worker(k) for k in range(first, first + scale.late_workers)],
        places=places,
        total=recipe.rollout.max_in_flight if scale.late_workers else None,
        patience_seconds=scale.start_timeout_seconds,
        say=say,
    )


def _kind(placed: list[_Placed], kind: type, cpus: float, gpus: float, assembly: Assembly, **more: Any) -> Any:
    """An actor class with what it takes, that Ray begins again as often as it dies, on another node where it must."""
    options = {
        "num_cpus": cpus,
        "num_gpus": gpus,
        "max_restarts": _FOR_EVER,
        "max_concurrency": assembly.resolved.recipe.rollout.max_in_flight + _OVERHEAD,
        "scheduling_strategy": "SPREAD",
        **more,
    }
    return _Kept(ray.remote(kind).options(**options), placed)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Remembers what was placed."""

    kind: Any
    placed: list[_Placed]

    def remote(self, *given: Any) -> Any:
        """Place one."""
        actor = self.kind.remote(*given)
        self.placed.append(_Placed(actor, given))
        return actor


async def _begun(status: Callable[[], Awaitable[Any]], name: str, assembly: Assembly) -> Any:
    """How something stands that has just been placed; where it is killed meanwhile, that which Ray begins in its place.

    Raises:
        EngineError: It does not begin, or not in time.
    """
    seconds = assembly.resolved.recipe.scale.start_timeout_seconds
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    return await status()
                except Restarting:
                    await asyncio.sleep(_RESTARTING_SECONDS)
    except TimeoutError:
        limit = f"{seconds:g} s (scale.start_timeout_seconds)"
        raise EngineError(f"scale: {name} did not start within {limit}: Ray may lack resources to place it") from None
    except Gone as gone:
        raise EngineError(f"scale: {name} died as it began: {gone}") from None


def _check_abilities(assembly: Assembly, status: ReplicaStatus) -> None:
    try:
        require(status.abilities, assembly.needed_abilities(), engine=assembly.resolved.recipe.engine.name)
    except RecipeError as error:
        raise assembly.resolved.error("engine", str(error)) from None


def _given(kind: type) -> list[str]:
    """What a dataclass is made from."""
    return [each.name for each in kind.__dataclass_fields__.values() if each.init]  # type: ignore[attr-defined]


def _nodes(statuses: Sequence[ReplicaStatus], nodes: Sequence[Any]) -> set[str]:
    return {status.node for status in statuses} | {node["NodeID"] for node in nodes if node["Alive"]}


def _of(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
