"""Interface of a cluster: the engine and the episode workers of a run in other processes."""

from __future__ import annotations

from typing import Protocol

from whetstone.inference.protocol import Engine
from whetstone.rollout.collector import Collector


class Cluster(Protocol):
    """Engine replicas and episode workers of one run in other processes.

    `scaling.ray_cluster.start_ray_cluster` creates it if the recipe sets `scale: ray`.
    """

    @property
    def engine(self) -> Engine:
        """Return the engine that distributes requests over all replicas."""
        ...

    def distribute_collector(self, collector: Collector) -> Collector:
        """Return a collector that runs its groups in the episode workers.

        A collector whose actor does not sample from `engine` is returned unchanged: it plays its groups in this
        process.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Return the metrics `scale/…` of one step: counts since the previous call, and current loads."""
        ...

    async def close(self) -> None:
        """Stop all replicas, workers and judges of the run."""
        ...
