"""Interface of training stages: steps, and states in which a checkpoint can be saved."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from whetstone.failure_causes import StartupFailureMonitor
from whetstone.inference import Engine
from whetstone.learning.protocol import Learner
from whetstone.rollout import Collector


class Stage(Protocol):
    """Training stage in progress.

    Implemented by `Supervised`, `Pretraining`, `OfflineTraining` and `Reinforcement`. `SingleRun` calls `step` until
    the stage ends, `settle` before each checkpoint, then `conclude` and `close`.
    """

    done: int
    """Number of steps made, including those before a resume."""

    @property
    def version(self) -> int:
        """Policy version of the trained weights."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether running work must be finished rather than cancelled when the run is interrupted."""
        ...

    @property
    def state(self) -> dict[str, Any] | None:
        """State that a checkpoint needs in addition to weights and optimizer; None: none."""
        ...

    @property
    def memory(self) -> dict[str, Any] | None:
        """State of the method's stateful components, by name; None: none."""
        ...

    @property
    def collector(self) -> Collector | None:
        """Collector of sampled episodes; None if the stage does not sample."""
        ...

    async def step(self, budget_share: float = 0.0) -> dict[str, float]:
        """Make the next step and return its metrics.

        Args:
            budget_share: Fraction of the stage's budget that is used, from 0 to 1.
        """
        ...

    async def settle(self) -> None:
        """Finish running work until a checkpoint can be saved."""
        ...

    async def close(self) -> None:
        """Release all resources of the stage."""
        ...

    @property
    def causes(self) -> Mapping[str, int]:
        """Causes of episodes of the last step without a score or a trained token, with their numbers."""
        ...

    def conclude(self) -> None:
        """Check the stage after its last step.

        Raises:
            NothingScoredError: If none of its episodes had a score.
        """
        ...

    def waits(self) -> list[tuple[str, str, float]]:
        """Return the current waits for the watchdog: (component, awaited component, seconds).

        The longest wait is first.
        """
        ...


class WithoutSampling:
    """Base class of stages that do not sample: steps are short, and nothing runs between two steps.

    Args:
        learner: Learner of the policy.
        engine: Engine that receives the weights after each update.
        beginning: Monitors the first samples for failures.
        done: Number of steps made before.
    """

    is_busy = True
    """Always True: running work is short."""
    collector = None
    state = None
    memory = None

    def __init__(self, learner: Learner, engine: Engine, beginning: StartupFailureMonitor, *, done: int) -> None:
        self.learner, self.engine, self.beginning, self.done = learner, engine, beginning, done
        self.causes: Mapping[str, int] = {}
        """See `Stage.causes`."""
        self.updating_since: float | None = None
        """Start of the running update, in seconds of `time.perf_counter`; None: no update is running."""

    @property
    def version(self) -> int:
        """Policy version of the trained weights, that of the engine."""
        return self.engine.version

    async def settle(self) -> None:
        """Do nothing: no work runs between two steps."""

    async def close(self) -> None:
        """Do nothing: no resource is open."""

    def conclude(self) -> None:
        """Check that at least one of the first samples could be used; see `Stage.conclude`."""
        self.beginning.conclude()

    def waits(self) -> list[tuple[str, str, float]]:
        """Return the wait for a running update, as (component, component it waits for, seconds)."""
        since = self.updating_since
        return [] if since is None else [("the learner", "its update", time.perf_counter() - since)]
