"""Metric curves of a run by stage and key, read as they are appended.

Note:
    A run that resumes from a checkpoint rewrites the file without later rows. A file that changed before the position
    of the last read is therefore read again.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whetstone.evaluation.intervals import wilson_interval
from whetstone.json_lines import iterate_lines, parse_object
from whetstone.reporting.metrics import parse_metrics
from whetstone.viewer.run_files import RunFiles

MAX_POINTS = 600
"""Maximum number of points of a curve; a longer curve shows means of neighbors."""
_COMPARED = 4096
_MAX_ROW_BYTES, _MAX_BYTES = 2**20, 2**30
"""Maximum bytes of a line, and of the part of the file that is read."""


class MetricRows:
    """Reads the rows of `metrics.jsonl` of a run while the run appends to the file."""

    def __init__(self, run_dir: Path, *, follow_symlinks: bool = False) -> None:
        self.path, self._files = run_dir / "metrics.jsonl", RunFiles(run_dir, follow_symlinks)
        self.rows: list[dict[str, Any]] = []
        self.damaged = 0
        """Number of lines that could not be read."""
        self.unreadable = ""
        """Reason why the file cannot be read; empty if it can."""
        self._done, self._tail = 0, 0
        self._reading = threading.Lock()

    def refresh(self) -> None:
        """Read the rows that were appended since the last call; a rewritten file is read again."""
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

    def stage_rows(self, stage: str) -> list[dict[str, Any]]:
        """Return the rows of a stage, in order of steps."""
        return [row for row in self.rows if row["stage"] == stage]

    def list_stages(self) -> list[str]:
        """Return the names of the started stages, in the order of their start."""
        return list(dict.fromkeys(row["stage"] for row in self.rows))


@dataclass(frozen=True, slots=True)
class Curve:
    """Curve of a metric over the steps of a stage."""

    x: list[float]
    """Steps."""
    y: list[float]
    """Values of the metric."""
    low: list[float]
    """Lower ends of 95 % intervals; empty if there are none."""
    high: list[float]
    """Upper ends of 95 % intervals; empty if there are none."""


def build_curves(rows: Sequence[Mapping[str, Any]], *, max_points: int = MAX_POINTS) -> dict[str, Curve]:
    """Build the curve of each metric in the rows of one stage, by name of the metric.

    A success has the Wilson interval over the effective episodes of its step (of all steps that one point shows).
    """
    points: dict[str, list[tuple[int, float, float]]] = {}
    for row in rows:
        step, episodes = row["step"], _episodes(row)
        for key, value in row.items():
            if type(value) in (float, int) and key != "step" and math.isfinite(value):
                points.setdefault(key, []).append((step, value, episodes))
    return {
        key: _curve(values, with_interval=key == "episode/success", max_points=max_points)
        for key, values in points.items()
    }


def _curve(points: Sequence[tuple[int, float, float]], *, with_interval: bool, max_points: int) -> Curve:
    width = math.ceil(len(points) / max_points)
    x, y, low, high = [], [], [], []
    for first in range(0, len(points), width):
        bucket = points[first : first + width]
        counts = [count for _, _, count in bucket]
        x.append(bucket[-1][0] if width == 1 else sum(step for step, _, _ in bucket) / len(bucket))
        y.append(sum(value for _, value, _ in bucket) / len(bucket))
        if with_interval and all(counts):
            interval = wilson_interval(sum(value * count for _, value, count in bucket), sum(counts))
            low.append(interval[0])
            high.append(interval[1])
    return Curve(x, y, low, high) if len(low) == len(x) else Curve(x, y, [], [])


def _episodes(row: Mapping[str, Any]) -> float:
    """Return the effective number of independent episodes in the success of a step; 0 if the row lacks it.

    A row of an earlier release has only the number of scored episodes.
    """
    if row.get("episode/effective_samples") is not None:
        return float(row["episode/effective_samples"])
    played, invalid = row.get("cost_per_step/episodes"), row.get("episode/invalid")
    return max(0.0, (played or 0.0) - (invalid or 0.0))
