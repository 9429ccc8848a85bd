"""What is a stage to whoever runs it? Steps, one after the other, and moments at which a checkpoint can be made."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from whetstone.causes import Beginning
from whetstone.inference import Engine
from whetstone.learning.protocol import Learner
from whetstone.rollout import Collector


class Stage(Protocol):
    """A stage under way."""

    done: int
    """Steps made."""

    @property
    def version(self) -> int:
        """Of the weights that are being trained."""
        ...

    @property
    def updating(self) -> bool:
        """Whether what is under way is to be finished rather than cut."""
        ...

    @property
    def state(self) -> dict[str, Any] | None:
        """What a checkpoint must know beside weights and optimiser."""
        ...

    @property
    def memory(self) -> dict[str, Any] | None:
        """What parts of a method remember from step to step."""
        ...

    @property
    def collector(self) -> Collector | None:
        """What samples; None where nothing does."""
        ...

    async def step(self, budget_share: float = 0.0) -> dict[str, float]:
        """The next step, as metrics.

        Args:
            budget_share: How much of its budget the stage has spent, from 0 to 1.
        """
        ...

    async def settle(self) -> None:
        """Come to where a checkpoint can be made."""
        ...

    async def close(self) -> None:
        """Let go of everything held."""
        ...

    @property
    def causes(self) -> Mapping[str, int]:
        """Why episodes of the last step have no score, or taught nothing: by cause, how many."""
        ...

    def conclude(self) -> None:
        """The stage is over.

        Raises:
            NothingScoredError: Not one of its episodes counted.
        """
        ...

    def waits(self) -> list[tuple[str, str, float]]:
        """(who, what it waits for, seconds), the longest first."""
        ...


class WithoutSampling:
    """What stages have in common that sample nothing: their steps are short, and nothing is under way between two.

    Args:
        beginning: Watches the first of what it learns from.
        done: Steps made.
    """

    updating = True
    """Whatever is under way is short."""
    collector = None
    state = None
    memory = None

    def __init__(self, learner: Learner, engine: Engine, beginning: Beginning, *, done: int) -> None:
        self.learner, self.engine, self.beginning, self.done = learner, engine, beginning, done
        self.causes: Mapping[str, int] = {}
        """See `Stage.causes`."""
        self.updating_since: float | None = None

    @property
    def version(self) -> int:
        """Of the weights that are being trained."""
        return self.engine.version

    async def settle(self) -> None:
        """Nothing is under way between two steps."""

    async def close(self) -> None:
        """Nothing is held."""

    def conclude(self) -> None:
        """See `Stage.conclude`."""
        self.beginning.conclude()

    def waits(self) -> list[tuple[str, str, float]]:
        """(who, what it waits for, seconds); nobody else is at work."""
        since = self.updating_since
        return [] if since is None else [("the learner", "its update", time.perf_counter() - since)]
