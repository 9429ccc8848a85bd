"""Origins of trajectories. Metrics, costs and budgets count by them."""

from __future__ import annotations

from enum import StrEnum


class Provenance(StrEnum):
    """Origin of a trajectory in the update that trains on it."""

    SAMPLED = "sampled"
    """Played by the policy in this run."""
    REPLAYED = "replayed"
    """Read from a buffer, an earlier run or a log."""
    IMAGINED = "imagined"
    """Played by the policy in this run; a model predicts the results of the environment or its tools."""
    DEMONSTRATED = "demonstrated"
    """Written by an expert, or read from a file of conversations."""
    HUMAN = "human"
    """Recorded while people or clients used the served policy."""

    @property
    def is_fresh(self) -> bool:
        """Whether the policy played the trajectory in this run.

        Only such trajectories count towards costs and budgets.
        """
        return self in (Provenance.SAMPLED, Provenance.IMAGINED)
