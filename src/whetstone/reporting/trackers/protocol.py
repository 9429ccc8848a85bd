"""What is a tracker? Something that is told a run's name and recipe, its numbers step by step, and what it came to.

Easy to get wrong: a run that was killed goes on, and its tracker must go on with the same run there. It says which
steps it holds already, and is told those behind them alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker knows of a run before its first step."""

    id: str
    """Eight hexadecimal digits; the same each time the run goes on."""
    name: str
    """Of its folder."""
    folder: Path
    """The run directory."""
    recipe: Mapping[str, Any]
    """Resolved, with every default."""


class Tracker(Protocol):
    """One run in one tracker. Every call comes from one thread, which is not the one that trains."""

    def start(self, run: TrackedRun) -> int | None:
        """Begin, or go on with, this run.

        Returns:
            The last step that is held already, −1 for none: steps behind it are told. None: nobody knows; then steps
            are told behind the last one for which `log` came back.
        """
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers of a step; of one step there may be several calls, with other names each.

        Args:
            step: Counted over all stages of the run, from 1; what is measured before the first one is told as of 0.
            metrics: By name, as `docs/metrics.md` has them; all are finite.

        Raises:
            Exception: They could not be kept. It is said once, and the same numbers are told again with the next step.
        """
        ...

    def finish(self, summary: Mapping[str, float] | None) -> None:
        """Let go of everything.

        Args:
            summary: What the run came to; None: it stopped before its end.
        """
        ...
