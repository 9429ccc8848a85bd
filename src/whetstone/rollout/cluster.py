"""Interface of the engine and the episode workers of a run that are outside of its process."""

from __future__ import annotations

from typing import Protocol

from whetstone.inference.protocol import Engine
from whetstone.rollout.collector import Collector


class Cluster(Protocol):
    """The engine and the episode workers of a run, in other processes."""

    @property
    def engine(self) -> Engine:
        """Return the engine that samples from all replicas."""
        ...

    def distribute_collector(self, collector: Collector) -> Collector:
        """Return a collector whose groups run in workers if the policy samples them through `engine`.

        Any other collector is returned unchanged.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Return the metrics `scale/…` of a step, counted since the previous call."""
        ...

    async def close(self) -> None:
        """Stop all replicas and workers."""
        ...
