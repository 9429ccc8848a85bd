"""What tests of trackers share: a run to be told of, and a tracker that remembers what it was told."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from whetstone.reporting import Journal
from whetstone.reporting.trackers import Feed, TrackedRun

RUN_ID = "0123abcd"
RECIPE = {"seed": 3, "policy": {"path": None, "device": "cpu"}, "rollout": {"group_size": 4}}
MADE = {
    name: {"success": success, "interval": [0.0, 1.0]}
    for name, success in (("untrained", 0.0), ("supervised", 0.25), ("reinforcement", 0.75))
}
SUMMARY = {"evaluations": MADE, "seconds": {"reinforcement": 8.0}, "parameters": 99}


def tracked(folder):
    """A run of this folder, as a tracker knows it."""
    folder.mkdir(parents=True, exist_ok=True)
    return TrackedRun(RUN_ID, "demo", folder, RECIPE)


def evaluation(success):
    """An evaluation as a run keeps it."""
    return {"success": success, "interval": [0.0, 1.0], "turns": 2.0, "episodes": 8, "reward": None}


def write_run(folder, *, supervised=0, reinforcement=0, evaluations=()):
    """A run directory with so many steps on record; the reward of step k is k/10."""
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


def feed_of(folder, said=None, **trackers):
    """What tells these trackers of the run in a folder."""
    lines = [] if said is None else said
    return Feed(trackers, Path(folder), RECIPE, say=lines.append)


@dataclass
class Remembering:
    """A tracker that keeps what it is told, as one in another process would."""

    held: int | None = None
    """What it says it holds."""
    told: list = field(default_factory=list)
    runs: list = field(default_factory=list)
    finished: list = field(default_factory=list)

    def start(self, run):
        self.runs.append(run)
        return self.held

    def log(self, step, metrics):
        self.told.append((step, dict(metrics)))

    def finish(self, summary):
        self.finished.append(summary)

    @property
    def steps(self):
        """Steps whose own numbers it was told, in order."""
        return [step for step, metrics in self.told if any(name.endswith("/step") for name in metrics)]

    @property
    def evaluations(self):
        """(step, success) of evaluations."""
        key = "evaluation/success"
        return [(step, metrics[key]) for step, metrics in self.told if key in metrics]


class Yours:
    """A tracker of somebody's own: a file."""

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
    """No tracker: nothing can be told to it."""

    def start(self, run):
        return None
