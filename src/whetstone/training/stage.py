"""Interface of training stages: steps, and states in which a checkpoint can be made."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from whetstone.failure_causes import StartupFailureMonitor
from whetstone.inference import Engine
from whetstone.learning.protocol import Learner
from whetstone.rollout import Collector


class Stage(Protocol):
    """A running stage."""

    done: int
    """Number of steps made."""

    @property
    def version(self) -> int:
        """Return the version of the trained weights."""
        ...

    @property
    def is_busy(self) -> bool:
        """Return whether running work must be finished rather than cancelled."""
        ...

    @property
    def state(self) -> dict[str, Any] | None:
        """Return the state that a checkpoint needs in addition to weights and optimizer."""
        ...

    @property
    def memory(self) -> dict[str, Any] | None:
        """Return the state of stateful components of the method."""
        ...

    @property
    def collector(self) -> Collector | None:
        """Return the collector; None if the stage does not sample."""
        ...

    async def step(self, budget_share: float = 0.0) -> dict[str, float]:
        """Make the next step and return its metrics.

        Args:
            budget_share: Fraction of its budget that the stage has used, from 0 to 1.
        """
        ...

    async def settle(self) -> None:
        """Reach a state in which a checkpoint can be made."""
        ...

    async def close(self) -> None:
        """Release all resources."""
        ...

    @property
    def causes(self) -> Mapping[str, int]:
        """Return the causes of episodes of the last step without a score or a trained token, with their number."""
        ...

    def conclude(self) -> None:
        """End the stage.

        Raises:
            NothingScoredError: If none of its episodes counted.
        """
        ...

    def waits(self) -> list[tuple[str, str, float]]:
        """Return (component, component it waits for, seconds), the longest wait first."""
        ...


class WithoutSampling:
    """Base class of stages that do not sample: their steps are short, and nothing runs between two steps.

    Args:
        beginning: Monitors the first samples for failures.
        done: Number of steps made.
    """

    is_busy = True
    """Always true: running work is short."""
    collector = None
    state = None
    memory = None

    def __init__(self, learner: Learner, engine: Engine, beginning: StartupFailureMonitor, *, done: int) -> None:
        self.learner, self.engine, self.beginning, self.done = learner, engine, beginning, done
        self.causes: Mapping[str, int] = {}
        """See `Stage.causes`."""
        self.updating_since: float | None = None

    @property
    def version(self) -> int:
        """Return the version of the trained weights."""
        return self.engine.version

    async def settle(self) -> None:
        """Do nothing: no work runs between two steps."""

    async def close(self) -> None:
        """Do nothing: no resource is open."""

    def conclude(self) -> None:
        """See `Stage.conclude`."""
        self.beginning.conclude()

    def waits(self) -> list[tuple[str, str, float]]:
        """Return (component, component it waits for, seconds); only the learner works."""
        since = self.updating_since
        return [] if since is None else [("the learner", "its update", time.perf_counter() - since)]
