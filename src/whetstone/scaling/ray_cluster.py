"""Start of a run on Ray: engine replicas, which are checked first, then judges, then environment workers.

Note:
    Actors of Ray outlive an error during the start. If a later component does not start, all placed actors are killed.
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

from whetstone.assembly.assembly import RunComponents
from whetstone.compute_thread import run_in_compute_thread
from whetstone.errors import EngineError, RecipeError
from whetstone.inference.engine_capabilities import check_capabilities
from whetstone.plugins import get_search_paths
from whetstone.policies import on_cpu
from whetstone.rollout import Collector, PolicyActor
from whetstone.sandbox.isolation import strongest_layer
from whetstone.scaling.distributed_collector import DistributedCollector
from whetstone.scaling.engine_replica import ReplicaSpec, get_engine_settings
from whetstone.scaling.gauges import RayGauges
from whetstone.scaling.meta_model import to_meta_policy
from whetstone.scaling.protocol import ActorRestarting, ActorUnavailable, Notify, ReplicaStatus
from whetstone.scaling.ray_actors import (
    JudgeActor,
    RayJudge,
    RayReplica,
    RayWorker,
    ReplicaActor,
    WorkerActor,
    WorkerSpec,
)
from whetstone.scaling.ray_start import Demand, RunningRay, start_ray
from whetstone.scaling.replica_check import check_replica
from whetstone.scaling.scale_metrics import ScaleMetrics
from whetstone.scaling.weight_broadcast import SharedWeights
from whetstone.scaling.weight_sync_engine import WeightSyncEngine
from whetstone.scaling.worker_pool import WorkerPool

_OVERHEAD = 64
"""Number of concurrent calls of an actor in addition to one per episode, for statuses and weights."""
_FOR_EVER = -1
_CLOSING_SECONDS = 10.0
_RESTARTING_SECONDS = 0.25
"""Interval between two status requests to a process that restarts, in seconds."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """Placed Ray actor with the arguments from which Ray recreates it."""

    actor: Any
    arguments: tuple[Any, ...]


@dataclass(slots=True)
class RayCluster:
    """Cluster of a run on Ray: implements `rollout.cluster.Cluster`. `start_ray_cluster` creates it."""

    assembly: RunComponents
    engine: WeightSyncEngine
    pool: WorkerPool
    judges: Sequence[RayJudge]
    placed: Sequence[_Placed]
    running: RunningRay
    measured: ScaleMetrics = field(init=False)

    def __post_init__(self) -> None:
        gauges = RayGauges(self.assembly.resolved.name)
        self.measured = ScaleMetrics(self.engine, self.pool, self.judges, gauges)

    def distribute_collector(self, collector: Collector) -> Collector:
        """Return a collector that runs its groups in the workers; see `Cluster.distribute_collector`."""
        actor = collector.actor
        if not isinstance(actor, PolicyActor) or actor.engine is not self.engine:
            return collector
        return DistributedCollector(
            **{name: getattr(collector, name) for name in _init_fields(Collector)},
            pool=self.pool,
            recipe_strategy=self.assembly.strategy,
            temperature=actor.sampling.temperature,
            at_evaluation=collector.method is not self.assembly.method,
        )

    def metrics(self) -> dict[str, float]:
        """Return the metrics `scale/…` since the previous call."""
        return self.measured.collect()

    async def close(self) -> None:
        """Stop metrics, workers, replicas and judges, and shut down Ray if the run started it."""
        await self.measured.close()
        await self.pool.close()
        await self.engine.close()
        seen = [
            handle.replica for handle in self.engine.handles if handle.status is not None
        ]  # others were never placed
        closing = [_close_replica(replica) for replica in seen if isinstance(replica, RayReplica)]
        await asyncio.gather(*closing)
        _end(self.placed)
        await asyncio.to_thread(self.running.close)


async def _close_replica(replica: RayReplica) -> None:
    """Close the engine of a replica; no effect if the replica is unreachable or does not close in time."""
    with contextlib.suppress(ActorUnavailable, TimeoutError):
        async with asyncio.timeout(_CLOSING_SECONDS):
            await replica.close()


async def start_ray_cluster(assembly: RunComponents, *, version: int, notify: Notify) -> RayCluster:
    """Start and check all processes that the recipe's `scale` specifies.

    Args:
        assembly: Components of the run.
        version: Version of the policy's weights.
        notify: Receives a line when processes are placed, and later when one dies or returns.

    Raises:
        WhetstoneError: The cluster does not fit, does not start, or does not meet the requirements of the run.
    """
    resolved, scale = assembly.resolved, assembly.resolved.recipe.scale
    if scale.colocated and assembly.policy.device.type == "cpu":
        raise resolved.error(
            "scale.colocated", "the policy is computed on the CPU, so there is no GPU to share; remove this key"
        )
    began = time.perf_counter()
    async with contextlib.AsyncExitStack() as undone:  # if a later component does not start
        running = await asyncio.to_thread(start_ray, resolved, get_demand(assembly))
        undone.push_async_callback(asyncio.to_thread, running.close)
        placed: list[_Placed] = []
        undone.callback(_end, placed)
        making = _ReplicaPlacing(assembly, version, placed)
        replicas, statuses = await making.start_replicas()
        judges = [
            RayJudge(
                _kind(placed, JudgeActor, scale.worker_cpus, 0.0, assembly).remote(
                    resolved, get_search_paths(), strongest_layer()
                ),
                f"judge {k}",
            )
            for k in range(scale.reward_workers)
        ]
        begin = dict(assembly.policy.model.named_parameters())
        published = await run_in_compute_thread(lambda: SharedWeights(ray.put, begin, version=version))
        capabilities = statuses[0].capabilities
        engine = WeightSyncEngine(
            replicas,
            published,
            late=making.late,
            capabilities=capabilities,
            patience_seconds=scale.start_timeout_seconds,
            notify=notify,
            routing=scale.routing,
        )
        undone.push_async_callback(engine.close)
        engine.start()
        for replica in replicas:
            await check_replica(replica, assembly, timeout_seconds=scale.start_timeout_seconds)
        pool = await _workers(assembly, replicas, making.late, judges, statuses[0], placed, notify)
        for judge in judges:
            await _begun(judge.status, judge.name, assembly)
        making.place_late_ones()  # after all required actors have their resources
        undone.pop_all()
    pool.start()
    counts = [
        _plural(len(replicas), "engine replica"),
        _plural(scale.environment_workers, "environment worker"),
        _plural(len(judges), "reward worker"),
    ]
    num_nodes, seconds = len(_nodes(statuses, ray.nodes())), time.perf_counter() - began
    notify(f"on Ray: {', '.join(counts)} on {_plural(num_nodes, 'node')}, after {seconds:.0f} s")
    return RayCluster(assembly, engine, pool, judges, placed, running)


def _end(placed: Sequence[_Placed]) -> None:
    """Kill the placed actors of a run."""
    for each in placed:
        ray.kill(each.actor)


def get_demand(assembly: RunComponents) -> Demand:
    """Return the resources that a recipe requests from a cluster."""
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
    """Places the engine replicas of a run: the initial ones, and late ones that may join."""

    def __init__(self, assembly: RunComponents, version: int, placed: list[_Placed]) -> None:
        scale = assembly.resolved.recipe.scale
        self.assembly, self.version, self.placed = assembly, version, placed
        run, first = secrets.token_hex(8), scale.engine_replicas
        self.late = [
            RayReplica(f"whetstone-{run}-replica-{k}", f"replica {k}")
            for k in range(first, first + scale.late_replicas)
        ]
        """Replicas that have a name before they are placed."""
        policy = replace(assembly.policy, model=on_cpu(assembly.policy.model), critic=None)
        self._sent = ray.put(policy)

    async def start_replicas(self) -> tuple[list[RayReplica], list[ReplicaStatus]]:
        """Start the initial replicas and wait until they respond; they have no weights yet.

        Returns:
            The replicas and their statuses.
        """
        assembly = self.assembly
        count = assembly.resolved.recipe.scale.engine_replicas
        replicas = [RayReplica(self._placed(k), f"replica {k}") for k in range(count)]
        statuses = await asyncio.gather(*(_begun(replica.status, replica.name, assembly) for replica in replicas))
        for status in statuses:
            _check_capabilities(assembly, status)
        return replicas, list(statuses)

    def place_late_ones(self) -> None:
        """Request the late replicas; Ray starts each one when the cluster has room for it."""
        first = self.assembly.resolved.recipe.scale.engine_replicas
        for k, replica in enumerate(self.late, start=first):
            self._placed(k, name=replica.placed)

    def _placed(self, number: int, **more: Any) -> Any:
        assembly = self.assembly
        scale = assembly.resolved.recipe.scale
        making = ReplicaSpec(
            assembly.resolved,
            get_engine_settings(assembly, number),
            on_gpu=scale.replica_gpus > 0 or scale.colocated,
            threads=max(1, int(scale.replica_cpus)),
            version=self.version,
            folders=tuple(get_search_paths()),
        )
        gpus = scale.replica_gpus * scale.tensor_parallel
        kind = _kind(self.placed, ReplicaActor, scale.replica_cpus, gpus, assembly, **more)
        return kind.remote(making, self._sent)


async def _workers(
    assembly: RunComponents,
    replicas: Sequence[RayReplica],
    late: Sequence[RayReplica],
    judges: Sequence[RayJudge],
    status: ReplicaStatus,
    placed: list[_Placed],
    notify: Notify,
) -> WorkerPool:
    """Start the initial environment workers and return the pool; late workers start when the cluster has room."""
    recipe = assembly.resolved.recipe
    scale, places = recipe.scale, math.ceil(recipe.rollout.max_episodes / recipe.scale.environment_workers)
    # a worker computes nothing, and its node may lack the policy's device
    resolved = assembly.resolved.with_changes({"policy.device": "cpu", "policy.dtype": "float32"})
    making = WorkerSpec(
        resolved,
        tuple(replicas),
        tuple(late),
        tuple(judges),
        status.capabilities,
        places,
        patience_seconds=scale.start_timeout_seconds,
        routing=scale.routing,
        folders=tuple(get_search_paths()),
        isolation=strongest_layer(),
    )
    sent = await asyncio.to_thread(ray.put, to_meta_policy(assembly.policy))

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
        total=recipe.rollout.max_episodes if scale.late_workers else None,
        patience_seconds=scale.start_timeout_seconds,
        notify=notify,
    )


def _kind(placed: list[_Placed], kind: type, cpus: float, gpus: float, assembly: RunComponents, **more: Any) -> Any:
    """Return a Ray actor class with its resources. Ray restarts such an actor when it dies, if necessary on another
    node.
    """
    options = {
        "num_cpus": cpus,
        "num_gpus": gpus,
        "max_restarts": _FOR_EVER,
        "max_concurrency": assembly.resolved.recipe.rollout.max_episodes + _OVERHEAD,
        "scheduling_strategy": "SPREAD",
        **more,
    }
    return _RecordingActorClass(ray.remote(kind).options(**options), placed)


@dataclass(frozen=True, slots=True)
class _RecordingActorClass:
    """Ray actor class that records which actors were placed, so that an error during the start can kill them."""

    kind: Any
    placed: list[_Placed]

    def remote(self, *arguments: Any) -> Any:
        """Place an actor with these constructor arguments and record it."""
        actor = self.kind.remote(*arguments)
        self.placed.append(_Placed(actor, arguments))
        return actor


async def _begun(status: Callable[[], Awaitable[Any]], name: str, assembly: RunComponents) -> Any:
    """Wait until a process that was just placed responds, and return its status.

    If the process is killed meanwhile, waits for its replacement by Ray.

    Raises:
        EngineError: The process does not start, or not in time.
    """
    seconds = assembly.resolved.recipe.scale.start_timeout_seconds
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    return await status()
                except ActorRestarting:
                    await asyncio.sleep(_RESTARTING_SECONDS)
    except TimeoutError:
        limit = f"{seconds:g} s (scale.start_timeout_seconds)"
        raise EngineError(
            f"scale: {name} did not start within {limit}; Ray may lack resources: request fewer in scale"
        ) from None
    except ActorUnavailable as gone:
        raise EngineError(f"scale: {name} died during its start: {gone}") from None


def _check_capabilities(assembly: RunComponents, status: ReplicaStatus) -> None:
    try:
        check_capabilities(
            status.capabilities, assembly.required_capabilities(), engine=assembly.resolved.recipe.engine.name
        )
    except RecipeError as error:
        raise assembly.resolved.error("engine", str(error)) from None


def _init_fields(kind: type) -> list[str]:
    """Return the names of the constructor arguments of a dataclass."""
    return [each.name for each in kind.__dataclass_fields__.values() if each.init]  # type: ignore[attr-defined]


def _nodes(statuses: Sequence[ReplicaStatus], nodes: Sequence[Any]) -> set[str]:
    return {status.node for status in statuses} | {node["NodeID"] for node in nodes if node["Alive"]}


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
