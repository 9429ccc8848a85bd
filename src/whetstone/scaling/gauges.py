"""What can be seen of a run in Ray's own dashboard? How busy each worker and replica is, as gauges that Ray exports.

Ray shows them where Prometheus scrapes its nodes; without that nobody reads them, and setting one costs microseconds.
"""

from __future__ import annotations

from typing import Protocol

WORKER, REPLICA = "worker", "replica"
SHOWN = {
    "whetstone_worker_utilization": (WORKER, "Fraction of the slots of an environment worker that run an episode."),
    "whetstone_worker_on_tools": (WORKER, "Fraction of the running episodes that wait for their environment."),
    "whetstone_worker_queue": (WORKER, "Number of episodes that wait for a slot."),
    "whetstone_replica_utilization": (
        REPLICA,
        "Fraction of the time in which an engine replica computed.",
    ),
    "whetstone_replica_queue": (REPLICA, "Number of requests in an engine replica."),
    "whetstone_transfer_seconds": (None, "Seconds until all replicas had received and checked the last weights."),
}
"""Gauge → (label that separates its series, description)."""


class Gauges(Protocol):
    """Where the latest numbers are shown."""

    def show(self, name: str, value: float, who: str = "") -> None:
        """One of `SHOWN`, of a worker or replica where it is told apart by those."""
        ...


class RayGauges:
    """See `Gauges`: those of Ray.

    Args:
        run: By which runs on one cluster are told apart.
    """

    def __init__(self, run: str) -> None:
        from ray.util.metrics import Gauge

        self._kinds = {name: kind for name, (kind, _) in SHOWN.items()}
        self._run = run
        self._gauges = {
            name: Gauge(name, description=said, tag_keys=("run", *([kind] if kind else [])))
            for name, (kind, said) in SHOWN.items()
        }

    def show(self, name: str, value: float, who: str = "") -> None:
        """See `Gauges.show`."""
        kind = self._kinds[name]
        self._gauges[name].set(value, {"run": self._run, **({kind: who} if kind else {})})


class NoGauges:
    """See `Gauges`: nobody looks."""

    def show(self, name: str, value: float, who: str = "") -> None:
        """See `Gauges.show`."""
