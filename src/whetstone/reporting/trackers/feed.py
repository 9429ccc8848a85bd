"""How do a run's numbers reach its trackers? Each tracker has a thread of its own, and the run waits for none.

    runs/demo/trackers/id               names the run to its trackers, however often it goes on
    runs/demo/trackers/wandb.told       what this one was told, a line each: `step 12`, `evaluation 10`

Easy to get wrong: a kill comes between a step and its telling, or behind the telling of a step that is made again. What
is on record is told first when a run goes on, and a step is told once: one that is made again stays as it was told.
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
"""How long a run that is over waits for its trackers, together."""
_UNTRAINED = "untrained"
_LONGEST = 300
"""Letters of what a tracker that failed says."""
_NUMBERS = ("success", "reward", "turns", "tool_calls", "action_tokens", "episodes", "invalid")


@dataclass(frozen=True, slots=True)
class _Told:
    """Something to tell."""

    kind: str
    """`step` or `evaluation`."""
    step: int
    metrics: Mapping[str, float]

    @property
    def line(self) -> str:
        return f"{self.kind} {self.step}"


class Feed:
    """What a run tells its trackers.

    Args:
        trackers: By name.
        run_dir: The run's.
        recipe: Resolved.
        say: Told once of each tracker that fails.
    """

    def __init__(
        self, trackers: Mapping[str, Tracker], run_dir: Path, recipe: Mapping[str, Any], *, say: Callable[[str], None]
    ) -> None:
        self.trackers, self.run_dir, self.recipe, self.say = trackers, run_dir, recipe, say
        self._followed: list[Path] = []
        self._lines: list[_Line] = []
        self._offset = self._rows = 0
        self._before: dict[str, int] = {}
        """By stage of the folder, rows in front of it."""

    def follow(self, folder: Path) -> None:
        """The next steps are of the run in this folder; those it has on record come first. The second time nothing is.

        A run of several stages has a folder for each, and steps are counted over all of them.
        """
        if not self.trackers or folder in self._followed:
            return
        if not self._lines:
            run = TrackedRun(_id_of(self.run_dir), self.run_dir.resolve().name, self.run_dir, self.recipe)
            told = self.run_dir / "trackers"
            self._lines = [_Line(name, tracker, run, told, self.say) for name, tracker in self.trackers.items()]
        self._followed.append(folder)
        self._offset, self._rows, self._before = self._offset + self._rows, 0, {}
        events = [self._row(row) for row in Journal(folder).read()]
        for path in sorted((folder / "evaluations").glob("*.json")):
            stage, _, step = path.stem.rpartition("-")
            name, at = (stage, int(step)) if stage in self._before else (path.stem, None)
            events += self._evaluated(name, at, json.loads(path.read_text(encoding="utf-8")))
        for event in sorted(events, key=lambda event: (event.step, event.kind == "evaluation")):
            self._tell(event)

    def row(self, row: Mapping[str, Any]) -> None:
        """A step is made; `row` is its line of `metrics.jsonl`."""
        if self._lines:
            self._tell(self._row(row))

    def evaluation(self, stage: str, evaluation: Mapping[str, Any], *, step: int | None = None) -> None:
        """An evaluation is made.

        Args:
            stage: The one behind which it is made, or beside it; `untrained` before all.
            evaluation: As of `Evaluation.to_json`.
            step: Of the stage, whose weights are evaluated; None: its last.
        """
        for event in self._evaluated(stage, step, evaluation) if self._lines else ():
            self._tell(event)

    def close(self, summary: Mapping[str, Any] | None, *, seconds: float = SECONDS_AT_THE_END) -> None:
        """Nothing more comes. Waits until all is told, as long as that is allowed to take; what is not told by then is
        when the run is called with `--resume`.

        Args:
            summary: As `summary.json` holds it; None: the run stopped before its end.
        """
        until = time.monotonic() + seconds
        for line in self._lines:
            line.end(_numbers_of(summary) if summary is not None else None)
        for line in self._lines:
            line.wait(max(0.0, until - time.monotonic()))

    def _row(self, row: Mapping[str, Any]) -> _Told:
        self._before.setdefault(row["stage"], self._rows)
        self._rows += 1
        numbers = {name: value for name, value in row.items() if name not in ("stage", "step")}
        return _Told("step", self._offset + self._rows, _finite(numbers | {f"{row['stage']}/step": row["step"]}))

    def _evaluated(self, stage: str, step: int | None, evaluation: Mapping[str, Any]) -> Iterator[_Told]:
        if stage == _UNTRAINED:
            if self._offset:  # it was measured where the stage before it ended
                return
            at = 0
        elif step is not None:
            at = self._before[stage] + step
        else:
            at = min((first for first in self._before.values() if first > self._before.get(stage, self._rows)),
                     default=self._rows)  # fmt: skip
        yield _Told("evaluation", self._offset + at, evaluation_metrics(evaluation))

    def _tell(self, event: _Told) -> None:
        for line in self._lines:
            line.put(event)


class _Line:
    """One tracker, on a thread of its own."""

    def __init__(self, name: str, tracker: Tracker, run: TrackedRun, folder: Path, say: Callable[[str], None]) -> None:
        self.name, self.tracker, self.run, self.say = name, tracker, run, say
        self._file = folder / f"{re.sub(r'[^A-Za-z0-9]+', '_', name)}.told"
        self._known = set(self._file.read_text(encoding="utf-8").split("\n")) if self._file.is_file() else set()
        self._held: int | None = None
        self._queue: queue.SimpleQueue[_Told | None] = queue.SimpleQueue()
        self._summary: Mapping[str, float] | None = None
        self._failed = False
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def put(self, event: _Told) -> None:
        self._queue.put(event)

    def end(self, summary: Mapping[str, float] | None) -> None:
        self._summary = summary
        self._queue.put(None)

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)
        if self._thread.is_alive():
            self.say(f"tracker {self.name}: is not done yet; the same command with --resume tells it the rest")

    def _work(self) -> None:
        if not self._tried(self._start):
            return
        waiting: list[_Told] = []
        while (event := self._queue.get()) is not None:
            waiting.append(event)
            while waiting and self._tried(lambda: self._tell(waiting[0])):
                waiting.pop(0)
        while waiting and self._tried(lambda: self._tell(waiting[0])):
            waiting.pop(0)
        if waiting:
            self.say(f"tracker {self.name}: {len(waiting)} steps are not told; the same command with --resume does it")
        self._tried(lambda: self.tracker.finish(self._summary))

    def _start(self) -> None:
        self._held = self.tracker.start(self.run)

    def _tell(self, event: _Told) -> None:
        known = event.line in self._known
        if self._held is not None:  # whoever says what it holds is believed; of a step's evaluation it says nothing
            known = event.step <= self._held and (known or event.kind == "step")
        if known:
            return
        self.tracker.log(event.step, event.metrics)
        self._known.add(event.line)
        with open(self._file, "a", encoding="utf-8") as file:
            file.write(event.line + "\n")

    def _tried(self, work: Callable[[], None]) -> bool:
        """Whether it went well. The packages behind trackers raise what they like, and none of it is the run's end."""
        try:
            work()
        except Exception as error:
            if not self._failed:
                said = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]
                self.say(f"tracker {self.name} failed, the run goes on without it: {said}")
            self._failed = True
            return False
        return True


def evaluation_metrics(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """An evaluation as metrics, `evaluation/…`.

    Args:
        evaluation: As of `Evaluation.to_json`.
    """
    found = {name: evaluation.get(name) for name in _NUMBERS}
    found["success_low"], found["success_high"] = evaluation["interval"]
    found["well_formed_fraction"] = evaluation.get("well_formed_calls")
    found |= {f"pass_at_{k}": value for k, value in (evaluation.get("pass_at") or {}).items() if k != "1"}
    return _finite({f"evaluation/{name}": value for name, value in found.items()})


def _numbers_of(summary: Mapping[str, Any]) -> dict[str, float]:
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


def _id_of(run_dir: Path) -> str:
    path = run_dir / "trackers" / "id"
    if not path.is_file():
        write_text(path, f"{uuid4().hex[:8]}\n")
    return path.read_text(encoding="utf-8").strip()
