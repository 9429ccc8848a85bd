"""Gauges for Ray's dashboard: utilization and queue of each worker and engine replica.

Ray shows them if Prometheus scrapes its nodes. Otherwise they are not read, and setting one costs microseconds.
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
"""Gauge name → (label that separates its series, description)."""


class Gauges(Protocol):
    """Receiver of the latest values of a cluster's gauges."""

    def show(self, name: str, value: float, who: str = "") -> None:
        """Set a gauge to its latest value.

        Args:
            name: Key of `SHOWN`.
            value: Latest value.
            who: Name of the worker or replica, if the gauge has one series for each.
        """
        ...


class RayGauges:
    """Gauges that Ray exports to Prometheus; see `Gauges`.

    Args:
        run: Name that distinguishes runs on one cluster.
    """

    def __init__(self, run: str) -> None:
        from ray.util.metrics import Gauge

        self._kinds = {name: kind for name, (kind, _) in SHOWN.items()}
        self._run = run
        self._gauges = {
            name: Gauge(name, description=description, tag_keys=("run", *([kind] if kind else [])))
            for name, (kind, description) in SHOWN.items()
        }

    def show(self, name: str, value: float, who: str = "") -> None:
        """Set a gauge of Ray; see `Gauges.show`."""
        kind = self._kinds[name]
        self._gauges[name].set(value, {"run": self._run, **({kind: who} if kind else {})})


class NoGauges:
    """Gauges that discard all values, for clusters without monitoring."""

    def show(self, name: str, value: float, who: str = "") -> None:
        """Discard the value of a gauge."""
