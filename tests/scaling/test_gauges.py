"""How busy workers and replicas are is shown as it is: of those that are gone, nothing."""

import asyncio
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from whetstone.inference.protocol import EngineAbilities, EngineStatistics
from whetstone.scaling import scale_metrics
from whetstone.scaling.gauges import SHOWN
from whetstone.scaling.protocol import ReplicaStatus, WorkerStatus
from whetstone.scaling.replicated_engine import Seat

WITHOUT = "Ray is not installed: pip install 'ray[default]>=2.50'"
WORKER = WorkerStatus(3, 2, 0.5, 0, 0, (), 0, {}, 0.0, "a", 1)
REPLICA = ReplicaStatus(True, 0, EngineStatistics(rows=4), EngineAbilities(), 5, "a", 2)


@dataclass
class Shown:
    """See `Gauges`."""

    latest: dict = field(default_factory=dict)

    def show(self, name, value, who=""):
        assert name in SHOWN
        self.latest[name.removeprefix("whetstone_"), who] = value


@pytest.fixture
def looked(monkeypatch):
    """Look at a cluster a while: (what is shown, its one worker, its one replica)."""
    monkeypatch.setattr(scale_metrics, "_LOOK_SECONDS", 0.001)
    post = SimpleNamespace(worker=SimpleNamespace(name="worker 0"), places=4, status=WORKER, died=0)
    seat = Seat(SimpleNamespace(name="replica 0"), up=True, status=REPLICA)
    engine = SimpleNamespace(
        seats=[seat], transfers=[(0.5, 1), (0.25, 1)], count=1, rerouted=0, statistics=EngineStatistics(rows=4)
    )
    pool = SimpleNamespace(posts=[post], count=1, taken_back=0, seen=list)
    shown = Shown()

    async def look(change=lambda: None):
        metrics = scale_metrics.ScaleMetrics(engine, pool, (), shown)
        await asyncio.sleep(0.02)
        change()
        await asyncio.sleep(0.02)
        metrics.taken()
        await metrics.close()

    return shown, post, seat, lambda *change: asyncio.run(look(*change))


def test_a_workers_places_and_queues_are_shown(looked):
    shown, _, _, look = looked
    look()
    of = {name: value for (name, who), value in shown.latest.items() if who == "worker 0"}
    assert of == {"worker_utilization": 0.75, "worker_on_tools": 0.5, "worker_queue": 2}
    assert shown.latest["replica_queue", "replica 0"] == 5
    assert shown.latest["transfer_seconds", ""] == 0.25


def test_a_replica_that_computed_all_the_time_is_wholly_used(looked):
    shown, _, seat, look = looked

    def worked():
        seat.status = replace(REPLICA, statistics=EngineStatistics(rows=4, busy_seconds=60.0))

    look(worked)
    assert shown.latest["replica_utilization", "replica 0"] == 1.0


def test_of_those_that_are_gone_nothing_is_shown(looked):
    shown, post, seat, look = looked

    def gone():
        post.status, seat.up = None, False

    look(gone)
    assert {value for (_, who), value in shown.latest.items() if who} == {0.0}


@pytest.mark.slow
def test_ray_exports_what_is_shown(monkeypatch):
    """As text, where Prometheus looks for it."""
    ray = pytest.importorskip("ray", reason=WITHOUT)
    pytest.importorskip("prometheus_client", reason=WITHOUT)
    from two_raylets import raylets
    from whetstone.scaling.gauges import RayGauges

    monkeypatch.setenv("RAY_metrics_report_interval_ms", "500")
    with raylets(1, cpus=1):
        RayGauges("a run").show("whetstone_worker_utilization", 0.75, "worker 0")
        node = ray.nodes()[0]
        address, deadline = f"http://127.0.0.1:{node['MetricsExportPort']}/metrics", time.monotonic() + 60
        found = []
        while not found and time.monotonic() < deadline:
            time.sleep(0.5)
            try:
                with urllib.request.urlopen(address, timeout=5) as answer:
                    lines = answer.read().decode().splitlines()
            except (urllib.error.URLError, TimeoutError):
                continue
            found = [line for line in lines if line.startswith("ray_whetstone_worker_utilization{")]
    assert found[0].endswith(" 0.75")
    assert 'run="a run"' in found[0]
    assert 'worker="worker 0"' in found[0]
