"""Dispatch of metrics to experiment trackers: each tracker has a dedicated thread, and the run waits for none.

    runs/demo/trackers/id               ID of the run for its trackers, unchanged by a resume
    runs/demo/trackers/wandb.told       events sent to this tracker, one per line: `step 12`, `evaluation 10`

Note:
    A run can be killed before a step is sent, or after a step that is recomputed. A resumed run first sends the
    recorded steps that are missing. Each step is sent only once: a recomputed step is not sent again.
"""

from __future__ import annotations

import json
import math
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from whetstone.atomic_write import write_text
from whetstone.evaluation.stage_results import last_evaluation, read_stage_results, untrained_of
from whetstone.reporting.metrics import Journal
from whetstone.reporting.trackers.protocol import TrackedRun, Tracker

SECONDS_AT_THE_END = 60.0
"""Maximum time that a finished run waits for all its trackers, in seconds."""
_UNTRAINED = "untrained"
_LONGEST = 300
"""Maximum length of the error message of a tracker, in characters."""
_NUMBERS = ("success", "reward", "turns", "tool_calls", "action_tokens", "episodes", "invalid")


@dataclass(frozen=True, slots=True)
class _Event:
    """Event that is sent to the trackers."""

    kind: str
    """`step` or `evaluation`."""
    step: int
    """Step of the event, counted over all stages."""
    metrics: Mapping[str, float]
    """Values by name."""

    @property
    def line(self) -> str:
        return f"{self.kind} {self.step}"


class TrackerDispatcher:
    """Sends the metrics of a run to its trackers, each in a dedicated thread.

    Args:
        trackers: Trackers by name.
        run_dir: The run directory.
        recipe: The resolved recipe.
        warn: Callback for each tracker that fails.
    """

    def __init__(
        self, trackers: Mapping[str, Tracker], run_dir: Path, recipe: Mapping[str, Any], *, warn: Callable[[str], None]
    ) -> None:
        self.trackers, self.run_dir, self.recipe, self.warn = trackers, run_dir, recipe, warn
        self._followed: list[Path] = []
        self._lines: list[_Line] = []
        self._offset = self._rows = 0
        self._before: dict[str, int] = {}
        """Number of rows before each stage of the folder."""

    def follow_run(self, folder: Path) -> None:
        """Start sending the steps of a run directory, recorded steps first; a second call has no effect.

        A run of several stages has a folder for each, and steps are counted over all of them.
        """
        if not self.trackers or folder in self._followed:
            return
        if not self._lines:
            run = TrackedRun(_load_id(self.run_dir), self.run_dir.resolve().name, self.run_dir, self.recipe)
            folder_of_trackers = self.run_dir / "trackers"
            self._lines = [
                _Line(name, tracker, run, folder_of_trackers, self.warn) for name, tracker in self.trackers.items()
            ]
        self._followed.append(folder)
        self._offset, self._rows, self._before = self._offset + self._rows, 0, {}
        events = [self._row(row) for row in Journal(folder).read()]
        for path in sorted((folder / "evaluations").glob("*.json")):
            stage, _, step = path.stem.rpartition("-")
            name, at = (stage, int(step)) if stage in self._before else (path.stem, None)
            events += self._evaluation_events(name, at, json.loads(path.read_text(encoding="utf-8")))
        for event in sorted(events, key=lambda event: (event.step, event.kind == "evaluation")):
            self._send(event)

    def send_row(self, row: Mapping[str, Any]) -> None:
        """Queue the metrics of a step for all trackers.

        Args:
            row: The row of `metrics.jsonl`.
        """
        if self._lines:
            self._send(self._row(row))

    def send_evaluation(self, stage: str, evaluation: Mapping[str, Any], *, step: int | None = None) -> None:
        """Queue the metrics of an evaluation for all trackers.

        Args:
            stage: Stage during or after which it was made; `untrained` before all stages.
            evaluation: Result of `Evaluation.to_json`.
            step: Step of the stage whose weights are evaluated; None: its last.
        """
        for event in self._evaluation_events(stage, step, evaluation) if self._lines else ():
            self._send(event)

    def close(self, summary: Mapping[str, Any] | None, *, seconds: float = SECONDS_AT_THE_END) -> None:
        """Close the trackers after all events are sent, or after `seconds`. A resumed run sends the rest.

        Args:
            summary: Content of `summary.json`; None: the run stopped before its end.
            seconds: Maximum time to wait.
        """
        until = time.monotonic() + seconds
        for line in self._lines:
            line.end(_collect_numbers(summary) if summary is not None else None)
        for line in self._lines:
            line.wait(max(0.0, until - time.monotonic()))

    def _row(self, row: Mapping[str, Any]) -> _Event:
        self._before.setdefault(row["stage"], self._rows)
        self._rows += 1
        numbers = {name: value for name, value in row.items() if name not in ("stage", "step")}
        return _Event("step", self._offset + self._rows, _finite(numbers | {f"{row['stage']}/step": row["step"]}))

    def _evaluation_events(self, stage: str, step: int | None, evaluation: Mapping[str, Any]) -> Iterator[_Event]:
        if stage == _UNTRAINED:
            if self._offset:  # the previous stage was evaluated with the same weights
                return
            at = 0
        elif step is not None:
            at = self._before[stage] + step
        else:
            at = min((first for first in self._before.values() if first > self._before.get(stage, self._rows)),
                     default=self._rows)  # fmt: skip
        yield _Event("evaluation", self._offset + at, evaluation_metrics(evaluation))

    def _send(self, event: _Event) -> None:
        for line in self._lines:
            line.put(event)


class _Line:
    """Queue and dedicated thread of one tracker."""

    def __init__(self, name: str, tracker: Tracker, run: TrackedRun, folder: Path, warn: Callable[[str], None]) -> None:
        self.name, self.tracker, self.run, self.warn = name, tracker, run, warn
        self._file = folder / f"{re.sub(r'[^A-Za-z0-9]+', '_', name)}.told"
        self._known = set(self._file.read_text(encoding="utf-8").split("\n")) if self._file.is_file() else set()
        self._held: int | None = None
        self._queue: queue.SimpleQueue[_Event | None] = queue.SimpleQueue()
        self._summary: Mapping[str, float] | None = None
        self._failed = False
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def put(self, event: _Event) -> None:
        self._queue.put(event)

    def end(self, summary: Mapping[str, float] | None) -> None:
        self._summary = summary
        self._queue.put(None)

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)
        if self._thread.is_alive():
            self.warn(f"tracker {self.name}: not finished; the same command with --resume sends the rest")

    def _work(self) -> None:
        if not self._attempt(self._start):
            return
        waiting: list[_Event] = []
        while (event := self._queue.get()) is not None:
            waiting.append(event)
            while waiting and self._attempt(lambda: self._send(waiting[0])):
                waiting.pop(0)
        while waiting and self._attempt(lambda: self._send(waiting[0])):
            waiting.pop(0)
        if waiting:
            self.warn(
                f"tracker {self.name}: {len(waiting)} steps were not sent; the same command with --resume sends them"
            )
        self._attempt(lambda: self.tracker.finish(self._summary))

    def _start(self) -> None:
        self._held = self.tracker.start(self.run)

    def _send(self, event: _Event) -> None:
        known = event.line in self._known
        if self._held is not None:  # the tracker reports its last step, which does not cover evaluations
            known = event.step <= self._held and (known or event.kind == "step")
        if known:
            return
        self.tracker.log(event.step, event.metrics)
        self._known.add(event.line)
        with open(self._file, "a", encoding="utf-8") as file:
            file.write(event.line + "\n")

    def _attempt(self, work: Callable[[], None]) -> bool:
        """Call a method of the tracker; return whether it succeeded. No exception of a tracker may end the run."""
        try:
            work()
        except Exception as error:
            if not self._failed:
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]
                self.warn(f"tracker {self.name} failed; the run continues without it: {reason}")
            self._failed = True
            return False
        return True


def evaluation_metrics(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """Convert an evaluation into metrics with names `evaluation/…`.

    Args:
        evaluation: Result of `Evaluation.to_json`.
    """
    values = {name: evaluation.get(name) for name in _NUMBERS}
    values["success_low"], values["success_high"] = evaluation["interval"]
    values["well_formed_fraction"] = evaluation.get("well_formed_calls")
    values |= {f"pass_at_{k}": value for k, value in (evaluation.get("pass_at") or {}).items() if k != "1"}
    for name, each in (evaluation.get("members") or {}).items():
        values |= {f"members/{name}/{key}": each[key] for key in ("success", "reward")}
    return _finite({f"evaluation/{name}": value for name, value in values.items()})


def _collect_numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    results = read_stage_results(summary)
    return _finite(
        {
            "summary/success_untrained": untrained_of(summary)["success"],
            "summary/success_before": (results[-1].before if results else untrained_of(summary))["success"],
            "summary/success_after": last_evaluation(summary)["success"],
            "summary/training_seconds": sum(summary["seconds"].values()),
            "summary/parameters": summary["parameters"],
        }
    )


def _finite(numbers: Mapping[str, Any]) -> dict[str, float]:
    plain = (int, float)
    return {name: float(value) for name, value in numbers.items() if isinstance(value, plain) and math.isfinite(value)}


def _load_id(run_dir: Path) -> str:
    path = run_dir / "trackers" / "id"
    if not path.is_file():
        write_text(path, f"{uuid4().hex[:8]}\n")
    return path.read_text(encoding="utf-8").strip()
