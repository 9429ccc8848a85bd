"""Where do the numbers of a run go? One JSON object a step in `metrics.jsonl`, keys `area/name`.

Easy to get wrong: after a kill the file may hold steps the last checkpoint does not know, or half a line.
Going on from a checkpoint first rewinds the file to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from whetstone.atomic_write import saving, write_text
from whetstone.plain_json import to_json
from whetstone.renames import upgrade_metrics


class Journal:
    """The metrics file of a run, one flushed line a step.

    Args:
        heard: Each is told every row once it is written.
    """

    def __init__(self, run_dir: Path, *, heard: Sequence[Callable[[Mapping[str, Any]], None]] = ()) -> None:
        self.path, self.heard = run_dir / "metrics.jsonl", heard

    def record(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Append one step. Numbers that are not finite are written as null, so that every line is JSON.

        Raises:
            SaveError: It could not be written.
        """
        line = to_json({"stage": stage, "step": step, **metrics})
        with saving(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
        for heard in self.heard:
            heard({"stage": stage, "step": step, **metrics})

    def read(self) -> list[dict[str, Any]]:
        """Return the rows of all steps, with the metric names of this release. A torn last line is ignored."""
        if not self.path.is_file():
            return []
        rows = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                break
            if not isinstance(row, dict):
                break
            rows.append(upgrade_metrics(row))
        return rows

    def rewind(self, done: Mapping[str, int]) -> None:
        """Forget what came after `done[stage]` steps of each stage; stages not named are forgotten whole."""
        kept = [row for row in self.read() if row["step"] <= done.get(row["stage"], 0)]
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))
