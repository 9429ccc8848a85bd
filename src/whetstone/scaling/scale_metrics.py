"""Metrics of a cluster for each step: utilization, queues, weight transfers, failures.

Note:
    Counters start at 0 when a process restarts. Differences are computed within one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from whetstone.scaling.gauges import Gauges, NoGauges
from whetstone.scaling.protocol import ActorUnavailable, RemoteReward, ReplicaStatus, WorkerStatus
from whetstone.scaling.replicated_engine import ReplicaHandle
from whetstone.scaling.weight_sync_engine import WeightSyncEngine
from whetstone.scaling.worker_pool import WorkerPool

_LOOK_SECONDS = 0.25


@dataclass(slots=True)
class _Mean:
    """Running mean that is reset after each read."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    def collect(self) -> float:
        value = self.total / self.count if self.count else 0.0
        self.total, self.count = 0.0, 0
        return value


@dataclass(slots=True)
class _Counters:
    """Sums of counters over processes that may restart; each process counts from 0."""

    lives: dict[tuple[str, int], Mapping[str, float]] = field(default_factory=dict)

    def add(self, who: str, life: int, counts: Mapping[str, float]) -> None:
        self.lives[who, life] = dict(counts)

    def total(self) -> dict[str, float]:
        totals: dict[str, float] = {}
        for counts in self.lives.values():
            for name, count in counts.items():
                totals[name] = totals.get(name, 0.0) + count
        return totals


class ScaleMetrics:
    """Collects the metrics of a cluster by polling it several times per second. `RayCluster` creates it.

    Args:
        engine: Engine with the replicas.
        pool: Pool of the environment workers.
        judges: Reward workers.
        gauges: Receiver of the current values of each process; None: no gauges.
    """

    def __init__(
        self, engine: WeightSyncEngine, pool: WorkerPool, judges: Sequence[RemoteReward], gauges: Gauges | None = None
    ) -> None:
        self.engine, self.pool, self.judges = engine, pool, judges
        self._gauges = gauges or NoGauges()
        self._shown: dict[str, tuple[float, ReplicaStatus]] = {}
        """Time and status at which a replica was last shown."""
        self._places, self._on_tools, self._waiting, self._asked = _Mean(), _Mean(), _Mean(), _Mean()
        self._used = _Counters()
        self._judged = _Counters()
        self._before: dict[str, float] = {}
        self._since = time.perf_counter()
        self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        """Stop polling the cluster."""
        self._looking.cancel()
        await asyncio.gather(self._looking, return_exceptions=True)

    def collect(self) -> dict[str, float]:
        """Return the metrics since the previous call by name; `judge/…` cover the whole run."""
        now = time.perf_counter()
        seconds, self._since = max(1e-9, now - self._since), now
        replicas = max(1, self.engine.count)
        done = self.engine.statistics
        counts = {
            "engine": done.busy_seconds,
            "cached": done.cached_tokens,
            "computed": done.prefill_tokens,
            "rerouted": self.engine.rerouted + sum(status.rerouted for status in self.pool.last_statuses()),
            "replicas_died": sum(handle.died for handle in self.engine.handles),
            "workers_died": sum(post.died for post in self.pool.posts),
            "taken_back": self.pool.num_reassigned,
            "cpu": self._used.total().get("busy_seconds", 0.0),
        }
        new = {name: max(0.0, value - self._before.get(name, 0.0)) for name, value in counts.items()}
        self._before = {name: float(value) for name, value in counts.items()}
        transfers, self.engine.transfers = self.engine.transfers, []
        if transfers:
            self._gauges.show("whetstone_transfer_seconds", transfers[-1][0])
        return {
            "scale/workers": self.pool.count,
            "scale/replicas": self.engine.count,
            "scale/nodes": len(self._nodes()),
            "scale/worker_utilization": self._places.collect(),
            "scale/worker_cpu_seconds": new["cpu"],
            "scale/tool_wait_fraction": self._on_tools.collect(),
            "scale/worker_queue": self._waiting.collect(),
            "scale/replica_utilization": min(1.0, new["engine"] / (replicas * seconds)),
            "scale/replica_queue": self._asked.collect(),
            "scale/prefix_cache_hit_rate": new["cached"] / max(1.0, new["cached"] + new["computed"]),
            "scale/transfer_seconds": sum(took for took, _ in transfers),
            "scale/transfer_mib": sum(count for _, count in transfers) / 2**20,
            "scale/requests_rerouted": new["rerouted"],
            "scale/groups_reassigned": new["taken_back"],
            "scale/replicas_died": new["replicas_died"],
            "scale/workers_died": new["workers_died"],
            **self._judged.total(),
        }

    def _nodes(self) -> set[str]:
        """Return the node ids of all processes that are up, by their last status."""
        replicas = [handle.status for handle in self.engine.handles if handle.up]
        return {status.node for status in (*self.pool.last_statuses(), *replicas) if status is not None}

    async def _look(self) -> None:
        while True:
            for post in self.pool.posts:
                self._show_worker(post.worker.name, post.status, post.places)
                if post.status is None:
                    continue
                self._places.add(min(1.0, post.status.running / post.places))
                self._on_tools.add(post.status.on_tools)
                self._waiting.add(post.status.queued)
                self._used.add(post.worker.name, post.status.process, {"busy_seconds": post.status.busy_seconds})
                self._judged.add(post.worker.name, post.status.process, post.status.judged)
            for handle in self.engine.handles:
                self._show_replica(handle)
                if handle.up:
                    self._asked.add(handle.status.num_requests if handle.status is not None else 0)
            for judge in self.judges:
                with contextlib.suppress(ActorUnavailable):
                    counts = await judge.status()
                    life = int(counts.get("process", 0))
                    used = {name: value for name, value in counts.items() if name.startswith("judge/")}
                    self._judged.add(judge.name, life, used)
            await asyncio.sleep(_LOOK_SECONDS)

    def _show_worker(self, name: str, status: WorkerStatus | None, places: int) -> None:
        running, on_tools, queued = (status.running, status.on_tools, status.queued) if status else (0, 0.0, 0)
        self._gauges.show("whetstone_worker_utilization", min(1.0, running / places), name)
        self._gauges.show("whetstone_worker_on_tools", on_tools, name)
        self._gauges.show("whetstone_worker_queue", queued, name)

    def _show_replica(self, handle: ReplicaHandle) -> None:
        name, status, now = handle.replica.name, handle.status if handle.up else None, time.perf_counter()
        if status is None:  # it is gone
            self._shown.pop(name, None)
            self._gauges.show("whetstone_replica_utilization", 0.0, name)
            self._gauges.show("whetstone_replica_queue", 0, name)
            return
        since, before = self._shown.get(name, (now, status))
        if status is before and name in self._shown:  # there is no newer status
            return
        self._shown[name] = now, status
        self._gauges.show("whetstone_replica_queue", status.num_requests, name)
        if now > since:
            worked = status.statistics.busy_seconds - before.statistics.busy_seconds
            self._gauges.show("whetstone_replica_utilization", min(1.0, max(0.0, worked / (now - since))), name)
