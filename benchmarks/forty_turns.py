"""Do search episodes of up to forty turns hold up the short ones? Training that runs ahead against training that waits.

Every search takes a while; one task in six takes forty of them, the others two to six. The same tasks, as many updates
and the same warm-up for both ways, in turn, seed by seed; what counts is the clock. `--folder` keeps what was measured
and goes on.

Easy to get wrong: a process that was stopped for a while has a clock that says nothing, so such a run is made again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from evidence import BENCHES, keep, machine, page
from whetstone.analysis.evidence import read_bench, result_of, row_of
from whetstone.chat import Message, ToolSpec, assistant, user
from whetstone.environments.native.encyclopaedia import Encyclopaedia
from whetstone.environments.protocol import Observation, StepResult
from whetstone.recipe import load_recipe
from whetstone.record.checkpoint import latest_checkpoint
from whetstone.reporting import Progress, read_trajectories
from whetstone.seeding import derive_random
from whetstone.tools.protocol import Episode
from whetstone.training import train
from whetstone.trajectory import Author, Score, Task, Trajectory

LONG, SECONDS = 40, 0.15
"""Turns of a long episode, and what a search takes."""
UPDATES = 8
PAUSE = 2.0
"""Seconds without a sign of life that mean that the process was stopped."""
WAYS: Mapping[str, Mapping[str, Any]] = {
    "synchronous": {},
    "asynchronous": {"reinforcement.admit_ahead": 2, "reinforcement.max_staleness": 4},
}


class Searches:
    """Tasks by how many searches they take; the expert asks whatever it is asked.

    Args:
        seconds: What a search of those for training takes. A warm-up does not wait; it has its long ones, too, for a
            policy that never read so far does not end its sentences there.
    """

    def __init__(self, *, seed: int = 0, seconds: float = SECONDS) -> None:
        self.seed, self.seconds = seed, seconds

    def task(self, index: int) -> Task:
        """Training task `index`."""
        return self._task("training", self.seed, index)

    def held_out(self, count: int) -> list[Task]:
        """Short ones, the same whatever the seed."""
        return [self._task("held out", 0, index) for index in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """A word."""
        return assistant(derive_random("word", task.id, len(conversation)).choice(("town", "river", "land")))

    def _task(self, split: str, seed: int, index: int) -> Task:
        draw, training = derive_random("searches", split, seed, index), split == "training"
        turns = LONG if training and index % 6 == 3 else draw.randint(2, 6)
        seconds = self.seconds if training else 0.0
        private = {"turns": turns, "seconds": seconds, "pages": 60, "world": draw.randrange(1000)}
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


def recipe_of(seed: int, **changes: Any) -> Any:
    """What both ways have in common."""
    tiny = {
        "vocab_size": 300,
        "hidden_size": 48,
        "num_layers": 2,
        "num_heads": 4,
        "intermediate_size": 96,
        "context_length": 4096,
    }
    keys: dict[str, Any] = {
        "extends": "demo",
        "seed": seed,
        "policy": {"tiny": tiny},
        "tasks": {"source": "forty_turns:Searches", "kinds": None},
        "environment": {
            "name": "forty_turns:SlowIndex", "tools": None, "max_calls_per_turn": None, "max_turns": LONG,
        },
        "reward": "forty_turns:odd",
        "supervised": {"steps": 120, "batch_size": 16, "tasks": {"seconds": 0.0}},
        "rollout": {"max_new_tokens": 8, "group_size": 4, "temperature": 0.3},
        "reinforcement": {"steps": UPDATES, "tasks_per_step": 2},
        "evaluation": {"episodes": 2},
    }  # fmt: skip
    return load_recipe(keys, **{"ablations": None, **changes})


def warmed_up(seed: int, folder: Path) -> Path:
    """The policy behind its warm-up."""
    alone = dict.fromkeys(("reinforcement", "rollout", "objective", "advantage"))
    train(recipe_of(seed, **alone), folder, resume=(folder / "recipe.yaml").is_file(), progress=Progress(quiet=True))
    checkpoint = latest_checkpoint(folder)
    assert checkpoint is not None
    return checkpoint


def measured(way: str, seed: int, model: Path, folder: Path) -> dict[str, Any]:
    """Seconds of an update, and what was trained."""
    began = time.perf_counter()
    behind = {"supervised": None, "policy.tiny": None, "policy.path": str(model)}
    with longest_pause() as pause:
        train(recipe_of(seed, **behind, **WAYS[way]), folder, progress=Progress(quiet=True))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = sorted((folder / "trajectories").glob("step-*.jsonl"))
    turns = [len(trajectory.turns) for path in steps for trajectory in read_trajectories(path)]
    return {
        "success": 1.0,
        "seconds an update": rows[-1]["time/elapsed_seconds"] / len(rows),
        "turns of the longest episode": float(max(turns)),
        "turns of an episode": statistics.fmean(row["episode/turns"] for row in rows),
        "episodes of forty turns": float(sum(each == LONG for each in turns)),
        "updates an episode was old, at most": max(row.get("policy/staleness_max") or 0 for row in rows),
        "longest pause in seconds": pause[0],
        "seconds with start and end": time.perf_counter() - began,
    }


@contextmanager
def longest_pause(beat: float = 0.1) -> Iterator[list[float]]:
    """The longest time without a sign of life of this process in the block, in seconds; known behind it."""
    longest, over = [0.0], threading.Event()

    def listen() -> None:
        last = time.monotonic()
        while not over.wait(beat):
            longest[0], last = max(longest[0], time.monotonic() - last - beat), time.monotonic()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield longest
    finally:
        over.set()
        listener.join()


def undisturbed(way: str, seed: int, model: Path) -> dict[str, Any]:
    """What was measured while nobody stopped the process; nothing is resumed, for the clock would go on from there."""
    while True:
        with tempfile.TemporaryDirectory() as folder:
            found = measured(way, seed, model, Path(folder) / "run")
        if found["longest pause in seconds"] < PAUSE:
            return found
        print(f"{way} {seed}: stopped for {found['longest pause in seconds']:.0f} s, made again", file=sys.stderr)


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
                    found = undisturbed(way, seed, warmed_up(seed, root / f"warm-{seed}"))
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
