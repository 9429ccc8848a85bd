"""What was measured so far? Each turn of each side a line of a file, so that a benchmark that is stopped goes on.

Easy to get wrong: turns of another machine, or of other settings, do not belong beside these. A file says what it is
of in each line, and lines of anything else are left alone.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Turns:
    """Figures by side, in the order they were measured.

    Args:
        path: JSON lines, read now and added to; None: they are kept in memory alone.
        of: What they are of: settings that must be the same for figures to belong together.
    """

    def __init__(self, path: Path | None, of: Mapping[str, Any]) -> None:
        self._path, self._of = path, dict(of)
        self._found: dict[str, list[Any]] = {}
        for line in path.read_text().splitlines() if path is not None and path.is_file() else ():
            row = json.loads(line)
            if row["of"] == self._of:
                self._found.setdefault(row["side"], []).append(row["value"])

    def of(self, side: str) -> list[Any]:
        """All of a side."""
        return list(self._found.get(side, ()))

    def add(self, side: str, value: Any) -> None:
        """One more, on disk before the next is begun, and told."""
        self._found.setdefault(side, []).append(value)
        count = len(self._found[side])
        said = f"{value:,.4g}" if isinstance(value, float) else json.dumps(value)
        print(f"{side} {count}: {said}", file=sys.stderr, flush=True)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as lines:
                print(json.dumps({"of": self._of, "side": side, "value": value}), file=lines)

    def spans(self) -> dict[str, list[float]]:
        """[lowest, median, highest] of each side whose figures are numbers."""
        sides = {name: values for name, values in self._found.items() if all(isinstance(v, float) for v in values)}
        return {name: [min(values), statistics.median(values), max(values)] for name, values in sides.items()}

    def median(self, side: str) -> float:
        """Of a side that has figures."""
        return float(statistics.median(self._found[side]))

    def ratio(self, ours: str, theirs: str) -> float | None:
        """Of two sides' medians; None where one has none yet."""
        there = self._found.get(ours) and self._found.get(theirs)
        return self.median(ours) / self.median(theirs) if there else None
