"""Helpers for tests of trackers: a run to send, and a tracker in memory."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from whetstone.reporting import Journal
from whetstone.reporting.trackers import TrackedRun, TrackerDispatcher

RUN_ID = "0123abcd"
RECIPE = {"seed": 3, "policy": {"path": None, "device": "cpu"}, "rollout": {"group_size": 4}}
MADE = {
    name: {"success": success, "interval": [0.0, 1.0]}
    for name, success in (("untrained", 0.0), ("supervised", 0.25), ("reinforcement", 0.75))
}
SUMMARY = {"evaluations": MADE, "seconds": {"reinforcement": 8.0}, "parameters": 99}


def tracked(folder):
    """Return the run of this folder as a tracker receives it."""
    folder.mkdir(parents=True, exist_ok=True)
    return TrackedRun(RUN_ID, "demo", folder, RECIPE)


def evaluation(success):
    """Return an evaluation as a run stores it."""
    return {"success": success, "interval": [0.0, 1.0], "turns": 2.0, "episodes": 8, "reward": None}


def write_run(folder, *, supervised=0, reinforcement=0, evaluations=()):
    """Write a run directory with a number of recorded steps; the reward of step k is k/10."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").unlink(missing_ok=True)
    journal = Journal(folder)
    for step in range(1, supervised + 1):
        journal.record("supervised", step, {"loss/supervised": 1 / step})
    for step in range(1, reinforcement + 1):
        journal.record("reinforcement", step, {"reward/mean": step / 10})
    (folder / "evaluations").mkdir(exist_ok=True)
    for name, success in evaluations:
        (folder / "evaluations" / f"{name}.json").write_text(json.dumps(evaluation(success)))
    return folder


def feed_of(folder, messages=None, **trackers):
    """Return a dispatcher that sends the run of a folder to these trackers."""
    lines = [] if messages is None else messages
    return TrackerDispatcher(trackers, Path(folder), RECIPE, warn=lines.append)


@dataclass
class Remembering:
    """A tracker that stores what it receives, like one in another process."""

    stored_step: int | None = None
    """Last step that it reports as stored."""
    logged: list = field(default_factory=list)
    runs: list = field(default_factory=list)
    finished: list = field(default_factory=list)

    def start(self, run):
        self.runs.append(run)
        return self.stored_step

    def log(self, step, metrics):
        self.logged.append((step, dict(metrics)))

    def finish(self, summary):
        self.finished.append(summary)

    @property
    def steps(self):
        """Return received steps with metrics, in order."""
        return [step for step, metrics in self.logged if any(name.endswith("/step") for name in metrics)]

    @property
    def evaluations(self):
        """Return (step, success) of evaluations."""
        key = "evaluation/success"
        return [(step, metrics[key]) for step, metrics in self.logged if key in metrics]


class Yours:
    """A custom tracker that writes a file."""

    def __init__(self, *, path: str) -> None:
        self.path = Path(path)

    def start(self, run):
        self._add({"id": run.id, "name": run.name, "seed": run.recipe["seed"]})

    def log(self, step, metrics):
        self._add({"step": step, **metrics})

    def finish(self, summary):
        self._add({"summary": summary})

    def _add(self, row):
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")


class Mute:
    """An invalid tracker without methods."""

    def start(self, run):
        return None
