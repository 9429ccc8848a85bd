"""What did the parts of a cluster do since the last step? Shares of their time, queues, transfers, losses.

Easy to get wrong: counters begin at nothing where a process begins again. Differences are taken within one life of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from whetstone.scaling.gauges import Gauges, NoGauges
from whetstone.scaling.protocol import Gone, Judge, ReplicaStatus, WorkerStatus
from whetstone.scaling.publishing_engine import PublishingEngine
from whetstone.scaling.replicated_engine import Seat
from whetstone.scaling.worker_pool import WorkerPool

_LOOK_SECONDS = 0.25


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    count: int = 0

    def see(self, value: float) -> None:
        self.total += value
        self.count += 1

    def taken(self) -> float:
        value = self.total / self.count if self.count else 0.0
        self.total, self.count = 0.0, 0
        return value


@dataclass(slots=True)
class _Counters:
    """Numbers that only grow, of processes that may begin again: what they came to over all lives."""

    lives: dict[tuple[str, int], Mapping[str, float]] = field(default_factory=dict)

    def see(self, who: str, life: int, counts: Mapping[str, float]) -> None:
        self.lives[who, life] = dict(counts)

    def total(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for counts in self.lives.values():
            for name, count in counts.items():
                found[name] = found.get(name, 0.0) + count
        return found


class ScaleMetrics:
    """Looks at a cluster a few times a second.

    Args:
        engine: Its replicas.
        pool: Its environment workers.
        judges: Its reward workers.
        gauges: Where it is shown how each of them stands.
    """

    def __init__(
        self, engine: PublishingEngine, pool: WorkerPool, judges: Sequence[Judge], gauges: Gauges | None = None
    ) -> None:
        self.engine, self.pool, self.judges = engine, pool, judges
        self._gauges = gauges or NoGauges()
        self._shown: dict[str, tuple[float, ReplicaStatus]] = {}
        """When a replica was last shown, and how it stood."""
        self._places, self._on_tools, self._waiting, self._asked = _Mean(), _Mean(), _Mean(), _Mean()
        self._used = _Counters()
        self._judged = _Counters()
        self._before: dict[str, float] = {}
        self._since = time.perf_counter()
        self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        """Look no more."""
        self._looking.cancel()
        await asyncio.gather(self._looking, return_exceptions=True)

    def taken(self) -> dict[str, float]:
        """The numbers of the time since they were last taken; `judge/…` of the whole run."""
        now = time.perf_counter()
        seconds, self._since = max(1e-9, now - self._since), now
        replicas = max(1, self.engine.count)
        done = self.engine.statistics
        counts = {
            "engine": done.busy_seconds,
            "cached": done.cached_tokens,
            "computed": done.prefill_tokens,
            "rerouted": self.engine.rerouted + sum(status.rerouted for status in self.pool.seen()),
            "replicas_died": sum(seat.died for seat in self.engine.seats),
            "workers_died": sum(post.died for post in self.pool.posts),
            "taken_back": self.pool.taken_back,
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
            "scale/worker_utilization": self._places.taken(),
            "scale/worker_cpu_seconds": new["cpu"],
            "scale/tool_wait_fraction": self._on_tools.taken(),
            "scale/worker_queue": self._waiting.taken(),
            "scale/replica_utilization": min(1.0, new["engine"] / (replicas * seconds)),
            "scale/replica_queue": self._asked.taken(),
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
        """Where those are that can be asked, as they said when they were last looked at."""
        replicas = [seat.status for seat in self.engine.seats if seat.up]
        return {status.node for status in (*self.pool.seen(), *replicas) if status is not None}

    async def _look(self) -> None:
        while True:
            for post in self.pool.posts:
                self._show_worker(post.worker.name, post.status, post.places)
                if post.status is None:
                    continue
                self._places.see(min(1.0, post.status.running / post.places))
                self._on_tools.see(post.status.on_tools)
                self._waiting.see(post.status.queued)
                self._used.see(post.worker.name, post.status.process, {"busy_seconds": post.status.busy_seconds})
                self._judged.see(post.worker.name, post.status.process, post.status.judged)
            for seat in self.engine.seats:
                self._show_replica(seat)
                if seat.up:
                    self._asked.see(seat.status.asked if seat.status is not None else 0)
            for judge in self.judges:
                with contextlib.suppress(Gone):
                    counts = await judge.status()
                    life = int(counts.get("process", 0))
                    used = {name: value for name, value in counts.items() if name.startswith("judge/")}
                    self._judged.see(judge.name, life, used)
            await asyncio.sleep(_LOOK_SECONDS)

    def _show_worker(self, name: str, status: WorkerStatus | None, places: int) -> None:
        running, on_tools, queued = (status.running, status.on_tools, status.queued) if status else (0, 0.0, 0)
        self._gauges.show("whetstone_worker_utilization", min(1.0, running / places), name)
        self._gauges.show("whetstone_worker_on_tools", on_tools, name)
        self._gauges.show("whetstone_worker_queue", queued, name)

    def _show_replica(self, seat: Seat) -> None:
        name, status, now = seat.replica.name, seat.status if seat.up else None, time.perf_counter()
        if status is None:  # it is gone
            self._shown.pop(name, None)
            self._gauges.show("whetstone_replica_utilization", 0.0, name)
            self._gauges.show("whetstone_replica_queue", 0, name)
            return
        since, before = self._shown.get(name, (now, status))
        if status is before and name in self._shown:  # it was not asked again
            return
        self._shown[name] = now, status
        self._gauges.show("whetstone_replica_queue", status.asked, name)
        if now > since:
            worked = status.statistics.busy_seconds - before.statistics.busy_seconds
            self._gauges.show("whetstone_replica_utilization", min(1.0, max(0.0, worked / (now - since))), name)
