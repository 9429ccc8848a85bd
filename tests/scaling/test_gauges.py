"""Gauges show the load of workers and replicas, and nothing for dead ones."""

import asyncio
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from whetstone.inference.protocol import EngineCapabilities, EngineStatistics
from whetstone.scaling import scale_metrics
from whetstone.scaling.gauges import SHOWN
from whetstone.scaling.protocol import ReplicaStatus, WorkerStatus
from whetstone.scaling.replicated_engine import ReplicaHandle

WITHOUT = "Ray is not installed: pip install 'ray[default]>=2.50'"
WORKER = WorkerStatus(3, 2, 0.5, 0, 0, (), 0, {}, 0.0, "a", 1)
REPLICA = ReplicaStatus(True, 0, EngineStatistics(rows=4), EngineCapabilities(), 5, "a", 2)


@dataclass
class RecordedGauges:
    """Record gauges; see `Gauges`."""

    latest: dict = field(default_factory=dict)

    def show(self, name, value, who=""):
        assert name in SHOWN
        self.latest[name.removeprefix("whetstone_"), who] = value


@pytest.fixture
def observed(monkeypatch):
    """Observe a cluster for a while; return (gauges, its worker, its replica, observe)."""
    monkeypatch.setattr(scale_metrics, "_LOOK_SECONDS", 0.001)
    post = SimpleNamespace(worker=SimpleNamespace(name="worker 0"), places=4, status=WORKER, died=0)
    seat = ReplicaHandle(SimpleNamespace(name="replica 0"), up=True, status=REPLICA)
    engine = SimpleNamespace(
        handles=[seat], transfers=[(0.5, 1), (0.25, 1)], count=1, rerouted=0, statistics=EngineStatistics(rows=4)
    )
    pool = SimpleNamespace(posts=[post], count=1, num_reassigned=0, last_statuses=list)
    gauges = RecordedGauges()

    async def look(change=lambda: None):
        metrics = scale_metrics.ScaleMetrics(engine, pool, (), gauges)
        await asyncio.sleep(0.02)
        change()
        await asyncio.sleep(0.02)
        metrics.collect()
        await metrics.close()

    return gauges, post, seat, lambda *change: asyncio.run(look(*change))


def test_slots_and_queues_of_a_worker_are_shown(observed):
    gauges, _, _, look = observed
    look()
    by_name = {name: value for (name, who), value in gauges.latest.items() if who == "worker 0"}
    assert by_name == {"worker_utilization": 0.75, "worker_on_tools": 0.5, "worker_queue": 2}
    assert gauges.latest["replica_queue", "replica 0"] == 5
    assert gauges.latest["transfer_seconds", ""] == 0.25


def test_replica_that_always_computed_has_full_utilization(observed):
    gauges, _, handle, look = observed

    def worked():
        handle.status = replace(REPLICA, statistics=EngineStatistics(rows=4, busy_seconds=60.0))

    look(worked)
    assert gauges.latest["replica_utilization", "replica 0"] == 1.0


def test_dead_workers_and_replicas_have_zero_gauges(observed):
    gauges, post, handle, look = observed

    def fail():
        post.status, handle.up = None, False

    look(fail)
    assert {value for (_, who), value in gauges.latest.items() if who} == {0.0}


@pytest.mark.slow
def test_ray_exports_the_gauges(monkeypatch):
    """Read the text that Prometheus scrapes."""
    ray = pytest.importorskip("ray", reason=WITHOUT)
    pytest.importorskip("prometheus_client", reason=WITHOUT)
    from two_raylets import raylets
    from whetstone.scaling.gauges import RayGauges

    monkeypatch.setenv("RAY_metrics_report_interval_ms", "500")
    with raylets(1, cpus=1):
        RayGauges("a run").show("whetstone_worker_utilization", 0.75, "worker 0")
        node = ray.nodes()[0]
        address, deadline = f"http://127.0.0.1:{node['MetricsExportPort']}/metrics", time.monotonic() + 60
        samples = []
        while not samples and time.monotonic() < deadline:
            time.sleep(0.5)
            try:
                with urllib.request.urlopen(address, timeout=5) as answer:
                    lines = answer.read().decode().splitlines()
            except (urllib.error.URLError, TimeoutError):
                continue
            samples = [line for line in lines if line.startswith("ray_whetstone_worker_utilization{")]
    assert samples[0].endswith(" 0.75")
    assert 'run="a run"' in samples[0]
    assert 'worker="worker 0"' in samples[0]
