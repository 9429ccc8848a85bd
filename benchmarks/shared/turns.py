"""Stored measurements of benchmarks with alternating sides, so that an interrupted benchmark resumes.

Note:
    Measurements of other settings must not be mixed. Each line of a file names its settings, and other lines are
    ignored.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Turns:
    """Measurements per side, in order.

    Args:
        path: File of JSON lines, which is read and extended; None keeps the measurements only in memory.
        of: Settings that must be equal for measurements to belong together.
    """

    def __init__(self, path: Path | None, of: Mapping[str, Any]) -> None:
        self._path, self._of = path, dict(of)
        self._found: dict[str, list[Any]] = {}
        for line in path.read_text().splitlines() if path is not None and path.is_file() else ():
            row = json.loads(line)
            if row["of"] == self._of:
                self._found.setdefault(row["side"], []).append(row["value"])

    def of(self, side: str) -> list[Any]:
        """Return all measurements of a side."""
        return list(self._found.get(side, ()))

    def add(self, side: str, value: Any) -> None:
        """Add a measurement, store it and print it."""
        self._found.setdefault(side, []).append(value)
        count = len(self._found[side])
        text = f"{value:,.4g}" if isinstance(value, float) else json.dumps(value)
        print(f"{side} {count}: {text}", file=sys.stderr, flush=True)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as lines:
                print(json.dumps({"of": self._of, "side": side, "value": value}), file=lines)

    def spans(self) -> dict[str, list[float]]:
        """Return side → [lowest, median, highest], for sides with numbers."""
        sides = {name: values for name, values in self._found.items() if all(isinstance(v, float) for v in values)}
        return {name: [min(values), statistics.median(values), max(values)] for name, values in sides.items()}

    def median(self, side: str) -> float:
        """Return the median of a side."""
        return float(statistics.median(self._found[side]))

    def ratio(self, numerator: str, denominator: str) -> float | None:
        """Return the ratio of two sides' medians; None if one has no measurements."""
        has_both = self._found.get(numerator) and self._found.get(denominator)
        return self.median(numerator) / self.median(denominator) if has_both else None
