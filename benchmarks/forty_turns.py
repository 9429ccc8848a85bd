"""Do search episodes of up to forty turns hold up the short ones? Training that runs ahead against training that waits.

Every search takes a while; one task in six takes forty of them, the others two to six. The same tasks and as many
updates for both ways, in turn, seed by seed; what counts is the clock. `--folder` keeps what was measured and goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from evidence import BENCHES, keep, machine, page
from whetstone.analysis.evidence import read_bench, result_of, row_of
from whetstone.chat import Message, ToolSpec, assistant, user
from whetstone.environments.native.encyclopaedia import Encyclopaedia
from whetstone.environments.protocol import Observation, StepResult
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress, read_trajectories
from whetstone.seeding import derive_random
from whetstone.tools.protocol import Episode
from whetstone.training import train
from whetstone.trajectory import Author, Score, Task, Trajectory

LONG, SECONDS = 40, 0.15
"""Turns of a long episode, and what a search takes."""
UPDATES = 8
WAYS: Mapping[str, Mapping[str, Any]] = {
    "synchronous": {},
    "asynchronous": {"reinforcement.admit_ahead": 2, "reinforcement.max_staleness": 4},
}


class Searches:
    """Tasks by how many searches they take; the expert asks whatever it is asked.

    Args:
        long: Whether there are long ones among those for training; where there are none, nothing takes a while.
    """

    def __init__(self, *, seed: int = 0, long: bool = True) -> None:
        self.seed, self.long = seed, long

    def task(self, index: int) -> Task:
        """Training task `index`."""
        return self._task("training", self.seed, index, long=self.long)

    def held_out(self, count: int) -> list[Task]:
        """Short ones, the same whatever the seed."""
        return [self._task("held out", 0, index, long=False) for index in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """A word."""
        return assistant(derive_random("word", task.id, len(conversation)).choice(("town", "river", "land")))

    def _task(self, split: str, seed: int, index: int, *, long: bool) -> Task:
        draw = derive_random("searches", split, seed, index)
        turns = LONG if long and index % 6 == 3 else draw.randint(2, 6)
        private = {"turns": turns, "seconds": SECONDS if long else 0.0, "pages": 60, "world": draw.randrange(1000)}
        return Task(
            f"searches/{split}/{seed}/{index}", "search", private, {"kind": "long" if turns == LONG else "short"}
        )


class SlowIndex:
    """A local index that takes its time. Ends: terminated when the task's searches are made."""

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """The task."""
        self.index, self.left = Encyclopaedia(results=1), int(task.private["turns"])
        self.seconds = float(task.private["seconds"])
        self.index.open(Episode(task, seed))
        return Observation((user("search"),))

    async def step(self, action: Message) -> StepResult:
        """What is found for whatever was said."""
        await asyncio.sleep(self.seconds)
        self.left -= 1
        found = self.index.search(action.text)
        return StepResult(Observation((user(found),)), terminated=self.left == 0)

    async def close(self) -> None:
        """Nothing is held."""


async def odd(trajectory: Trajectory, task: Task) -> Score:
    """1 where the tokens add up to an odd number, so that siblings differ; an expert is always right."""
    number = sum(sum(turn.action.ids) for turn in trajectory.turns) % 2
    expert = any(author is Author.EXPERT for turn in trajectory.turns for author in turn.action.authors)
    return Score(float(number), success=bool(number) or expert)


def recipe_of(way: str, seed: int) -> Any:
    """A run of one of the two ways."""
    tiny = {"vocabulary": 300, "hidden": 48, "layers": 2, "heads": 4, "intermediate": 96, "context_length": 4096}
    keys: dict[str, Any] = {
        "extends": "demo",
        "seed": seed,
        "policy": {"tiny": tiny},
        "tasks": {"source": "forty_turns:Searches", "kinds": None},
        "environment": {
            "name": "forty_turns:SlowIndex", "tools": None, "max_calls_per_turn": None, "max_turns": LONG,
        },
        "reward": "forty_turns:odd",
        "supervised": {"steps": 120, "batch_size": 16, "tasks": {"long": False}},
        "rollout": {"max_new_tokens": 8, "group_size": 4, "temperature": 0.3},
        "reinforcement": {"steps": UPDATES, "tasks_per_step": 2},
        "evaluation": {"episodes": 2},
    }  # fmt: skip
    return load_recipe(keys, **{"ablations": None, **WAYS[way]})


def measured(way: str, seed: int, folder: Path) -> dict[str, Any]:
    """Seconds of an update, and what was trained."""
    began = time.perf_counter()
    train(recipe_of(way, seed), folder, progress=Progress(quiet=True))
    every = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in every if row["stage"] == "reinforcement"]
    before = max((row["time/elapsed_seconds"] for row in every if row["stage"] == "supervised"), default=0.0)
    steps = sorted((folder / "trajectories").glob("step-*.jsonl"))
    turns = [len(trajectory.turns) for path in steps for trajectory in read_trajectories(path)]
    return {
        "success": 1.0,
        "seconds an update": (rows[-1]["time/elapsed_seconds"] - before) / len(rows),
        "turns of the longest episode": float(max(turns)),
        "turns of an episode": statistics.fmean(row["episode/turns"] for row in rows),
        "updates an episode was old, at most": max(row.get("policy/staleness_max") or 0 for row in rows),
        "seconds with start and end": time.perf_counter() - began,
    }


def main() -> None:
    """Run both ways, and keep what was measured where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where runs are kept; what is there is not run again")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="keep the result among benchmarks/results/evidence")
    arguments = parser.parse_args()
    settings = read_bench(BENCHES / "forty-turns.yaml")
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as passing:
        root = arguments.folder or Path(passing)
        for seed in range(arguments.seeds):
            for way in WAYS:
                kept = root / f"{way}-{seed}.json"
                if not kept.is_file():
                    with tempfile.TemporaryDirectory() as folder:  # a clock that was stopped says nothing: no resuming
                        found = measured(way, seed, Path(folder) / "run")
                    root.mkdir(parents=True, exist_ok=True)
                    kept.write_text(json.dumps(found))
                measures = json.loads(kept.read_text())
                print(way, seed, measures, file=sys.stderr, flush=True)
                rows.setdefault(way, {})[seed] = row_of(settings, way, seed, measures, [1.0])
    told = result_of("forty-turns", settings, rows, world="demo", machine=machine(), budget={}, tasks=1)
    if arguments.write:
        keep(told)
    print(json.dumps(told) if arguments.json else page(told))


if __name__ == "__main__":
    main()
