"""Which curves has a run? Its metrics by stage and key, read as they are appended.

Easy to get wrong: a run that goes on from a checkpoint rewrites the file without what came behind it, so a file that
does not go on where it was read to is read again.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whetstone.evaluation.intervals import wilson
from whetstone.json_lines import iterate_lines, parse_object
from whetstone.reporting.metrics import parse_metrics
from whetstone.viewing.run_files import RunFiles

MOST_POINTS = 600
"""Of a curve; of a longer one the mean of neighbours is shown."""
_COMPARED = 4096
_MAX_ROW_BYTES, _MAX_BYTES = 2**20, 2**30
"""Of a line, and of the part of the file that is read."""


class MetricRows:
    """The rows of a run's `metrics.jsonl`, as far as it is written."""

    def __init__(self, run_dir: Path, *, follow_symlinks: bool = False) -> None:
        self.path, self._files = run_dir / "metrics.jsonl", RunFiles(run_dir, follow_symlinks)
        self.rows: list[dict[str, Any]] = []
        self.damaged = 0
        """Lines that could not be read."""
        self.unreadable = ""
        """Why the file cannot be read; empty if it can."""
        self._done, self._tail = 0, 0
        self._reading = threading.Lock()

    def refresh(self) -> None:
        """Read what was appended."""
        if not self.path.is_file():
            return
        try:
            file, self.unreadable = self._files.open(self.path), ""
        except OSError as error:
            self.unreadable = f"cannot be read: {error.strerror}"
            return
        with self._reading, file:
            start = max(0, self._done - _COMPARED)
            file.seek(start)
            if zlib.crc32(file.read(self._done - start)) != self._tail:
                self.rows, self.damaged, self._done = [], 0, 0
            file.seek(self._done)
            for line in iterate_lines(file, offset=self._done, max_bytes=_MAX_ROW_BYTES):
                if not line.content.endswith(b"\n") or line.offset > _MAX_BYTES:
                    break
                self._done += len(line.content)
                try:
                    self.rows.append(parse_metrics(parse_object(line.content)))
                except ValueError:
                    self.damaged += 1
            start = max(0, self._done - _COMPARED)
            file.seek(start)
            self._tail = zlib.crc32(file.read(self._done - start))

    def of(self, stage: str) -> list[dict[str, Any]]:
        """The rows of a stage."""
        return [row for row in self.rows if row["stage"] == stage]

    def stages(self) -> list[str]:
        """In the order they began."""
        return list(dict.fromkeys(row["stage"] for row in self.rows))


@dataclass(frozen=True, slots=True)
class Curve:
    """One number over the steps of a stage."""

    x: list[float]
    y: list[float]
    low: list[float]
    """Lower ends of 95 % intervals; empty where there are none."""
    high: list[float]


def curves_of(rows: Sequence[Mapping[str, Any]], *, most: int = MOST_POINTS) -> dict[str, Curve]:
    """By key, the curve of each number in the rows of one stage.

    A success has the Wilson interval over the effective episodes of its step (of all steps that one point shows).
    """
    points: dict[str, list[tuple[int, float, float]]] = {}
    for row in rows:
        step, episodes = row["step"], _episodes(row)
        for key, value in row.items():
            if type(value) in (float, int) and key != "step" and math.isfinite(value):
                points.setdefault(key, []).append((step, value, episodes))
    return {key: _curve(held, with_interval=key == "episode/success", most=most) for key, held in points.items()}


def _curve(points: Sequence[tuple[int, float, float]], *, with_interval: bool, most: int) -> Curve:
    width = math.ceil(len(points) / most)
    x, y, low, high = [], [], [], []
    for first in range(0, len(points), width):
        held = points[first : first + width]
        counts = [count for _, _, count in held]
        x.append(held[-1][0] if width == 1 else sum(step for step, _, _ in held) / len(held))
        y.append(sum(value for _, value, _ in held) / len(held))
        if with_interval and all(counts):
            interval = wilson(sum(value * count for _, value, count in held), sum(counts))
            low.append(interval[0])
            high.append(interval[1])
    return Curve(x, y, low, high) if len(low) == len(x) else Curve(x, y, [], [])


def _episodes(row: Mapping[str, Any]) -> float:
    """Return how many independent episodes the success of a step is of; 0 if its row does not say.

    A row of an earlier release has only the number of scored episodes.
    """
    if row.get("episode/effective_samples") is not None:
        return float(row["episode/effective_samples"])
    played, invalid = row.get("cost_per_step/episodes"), row.get("episode/invalid")
    return max(0.0, (played or 0.0) - (invalid or 0.0))
