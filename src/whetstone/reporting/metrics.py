"""Metrics file of a run: `metrics.jsonl`, one JSON object per step with keys `area/name`.

Note:
    After a kill, the file can contain steps after the last checkpoint, or an incomplete line. A resumed run first
    rewinds the file to its checkpoint.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from whetstone.atomic_write import convert_save_errors, write_text
from whetstone.json_lines import read_objects
from whetstone.renames import add_deprecated_metrics, upgrade_metrics
from whetstone.strict_json import to_json


class Journal:
    """Writes and reads the metrics file of a run, one flushed line per step.

    Args:
        run_dir: The run directory.
        listeners: Callbacks that receive every row after it is written.
        warn: Callback for damaged lines; None: they are logged.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        listeners: Sequence[Callable[[Mapping[str, Any]], None]] = (),
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.path, self.listeners = run_dir / "metrics.jsonl", listeners
        self.warn = warn or partial(logging.getLogger("whetstone").warning, "whetstone: %s")

    def record(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of one step, and pass the row to the listeners.

        Values that are not finite are written as null, so that every line is JSON.

        Args:
            stage: Name of the stage.
            step: Number of the step in the stage, from 1.
            metrics: Values by name.

        Raises:
            SaveError: The row could not be written.
        """
        metrics = add_deprecated_metrics(metrics)
        line = to_json({"stage": stage, "step": step, **metrics})
        with convert_save_errors(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
        for listener in self.listeners:
            listener({"stage": stage, "step": step, **metrics})

    def read(self) -> list[dict[str, Any]]:
        """Return the rows of all steps, with the metric names of this release.

        A damaged line is left out with a warning. An incomplete last line is ignored.
        """
        rows, damaged = self._read()
        for number, reason in damaged.items():
            self.warn(f"{self.path}:{number}: the line is damaged and left out: {reason}")
        return rows

    def truncate_rows(self, done: Mapping[str, int]) -> None:
        """Remove the rows after `done[stage]` steps of each stage; all rows of a stage that is not named are removed.

        A damaged file is first copied to `metrics.jsonl.damaged`, or the next free name (`.damaged-2`).

        Raises:
            SaveError: The file could not be written.
        """
        rows, damaged = self._read()
        if damaged:
            copy = self._keep_copy()
            for number, reason in damaged.items():
                self.warn(f"{self.path}:{number}: is damaged and left out: {reason}; the file is kept as {copy.name}")
        remaining = [row for row in rows if row["step"] <= done.get(row["stage"], 0)]
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in remaining))

    def _read(self) -> tuple[list[dict[str, Any]], dict[int, str]]:
        damaged: dict[int, str] = {}
        if not self.path.is_file():
            return [], damaged
        return list(read_objects(self.path, parse_metrics, on_damage=damaged.__setitem__)), damaged

    def _keep_copy(self) -> Path:
        names = (f"{self.path.name}.damaged{f'-{n}' * (n > 1)}" for n in count(1))
        copy = next(path for name in names if not (path := self.path.with_name(name)).exists())
        with convert_save_errors(copy):
            shutil.copyfile(self.path, copy)
        return copy


def parse_metrics(row: dict[str, Any]) -> dict[str, Any]:
    """Check a row of `metrics.jsonl`, and rename metrics of earlier releases.

    Raises:
        ValueError: The row has no stage or step, or a metric is not a number.
    """
    step = row.get("step")
    if not isinstance(row.get("stage"), str) or not isinstance(step, int) or isinstance(step, bool):
        raise ValueError('a row must have "stage" (a string) and "step" (an integer)')
    wrong = next((key for key, value in row.items() if key != "stage" and not _is_number(value)), None)
    if wrong is not None:
        raise ValueError(f'"{wrong}" is not a number')
    return upgrade_metrics(row)


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)
