"""Interface of experiment trackers: they receive the name and recipe of a run, its metrics per step, and its summary.

Note:
    A killed run can resume, and its tracker must then continue the same run. The tracker reports the last step that it
    has, and receives only later ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """Facts about a run that a tracker receives before the first step."""

    id: str
    """Eight hexadecimal digits, unchanged by a resume."""
    name: str
    """Name of the run directory."""
    folder: Path
    """The run directory."""
    recipe: Mapping[str, Any]
    """Resolved recipe, with every default."""


class Tracker(Protocol):
    """A tracker of one run. All calls are from one thread, which is not the training thread."""

    def start(self, run: TrackedRun) -> int | None:
        """Start or continue this run.

        Returns:
            The last step that the tracker has, −1 if it has none: later steps are sent. None if unknown: steps after
            the last successful call of `log` are sent.
        """
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics of a step; several calls can add different metrics to one step.

        Args:
            step: Step, counted over all stages of the run from 1; metrics measured before the first step have step 0.
            metrics: Values by name, as in `docs/reference/metrics.md`; all are finite.

        Raises:
            Exception: They could not be stored. It is reported once, and the metrics are sent again with the next step.
        """
        ...

    def finish(self, summary: Mapping[str, float] | None) -> None:
        """Release all resources.

        Args:
            summary: Results of the run; None: it stopped before its end.
        """
        ...
