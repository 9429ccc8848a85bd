"""Synchronous against asynchronous training with search episodes of up to forty turns next to short ones.

Every search has a latency; one task in six requires forty searches, the others two to six. Both ways have the same
tasks, number of updates and warm-up, alternate per seed, and are compared by wall-clock time. `--folder` stores the
measurements; finished ones are reused.

Note:
    The wall-clock time of a suspended process is meaningless, so such a run is repeated.
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

from claims.bench_settings import read_bench
from claims.evidence import build_result, build_row
from evidence import BENCHES, describe_machine, page, store_result
from whetstone.chat import Message, ToolSpec, assistant, user
from whetstone.environments.built_in.multi_hop_search import Encyclopaedia
from whetstone.environments.protocol import Observation, StepResult
from whetstone.recipe import load_recipe
from whetstone.record.checkpoint import latest_checkpoint
from whetstone.reporting import Progress, read_trajectories
from whetstone.seeding import derive_random
from whetstone.tools.protocol import Episode
from whetstone.training import train
from whetstone.trajectory import Author, Score, Task, Trajectory

LONG, SECONDS = 40, 0.15
"""Turns of a long episode, and seconds per search."""
UPDATES = 8
PAUSE = 2.0
"""Seconds without a heartbeat after which the process counts as suspended."""
WAYS: Mapping[str, Mapping[str, Any]] = {
    "synchronous": {},
    "asynchronous": {"reinforcement.admit_ahead": 2, "reinforcement.max_staleness": 4},
}


class Searches:
    """Task source with a number of searches per task; demonstrations are arbitrary words.

    Args:
        seconds: Latency of a search in training tasks. A warm-up has no latency, but has long episodes, because a
            policy that was never trained at such positions does not end its turns there.
    """

    def __init__(self, *, seed: int = 0, seconds: float = SECONDS) -> None:
        self.seed, self.seconds = seed, seconds

    def task(self, index: int) -> Task:
        """Return training task `index`."""
        return self._task("training", self.seed, index)

    def held_out(self, count: int) -> list[Task]:
        """Return short tasks, which do not depend on the seed."""
        return [self._task("held out", 0, index) for index in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return a word."""
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
    """Local search index with latency. Episodes terminate after the number of searches of the task."""

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Return the prompt of the task."""
        self.index, self.left = Encyclopaedia(results=1), int(task.private["turns"])
        self.seconds = float(task.private["seconds"])
        self.index.open(Episode(task, seed))
        return Observation((user("search"),))

    async def step(self, action: Message) -> StepResult:
        """Return the search result for the text of the action."""
        await asyncio.sleep(self.seconds)
        self.left -= 1
        search_result = self.index.search(action.text)
        return StepResult(Observation((user(search_result),)), terminated=self.left == 0)

    async def close(self) -> None:
        """Release nothing."""


async def odd(trajectory: Trajectory, task: Task) -> Score:
    """Return 1 if the sum of the token ids is odd, so that rewards in a group differ; demonstrations are right."""
    number = sum(sum(turn.action.ids) for turn in trajectory.turns) % 2
    expert = any(author is Author.EXPERT for turn in trajectory.turns for author in turn.action.authors)
    return Score(float(number), success=bool(number) or expert)


def build_recipe(seed: int, **changes: Any) -> Any:
    """Return the recipe that both ways share."""
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


def train_warm_up(seed: int, folder: Path) -> Path:
    """Return the policy after its warm-up."""
    without_reinforcement = dict.fromkeys(("reinforcement", "rollout", "objective", "advantage"))
    train(
        build_recipe(seed, **without_reinforcement),
        folder,
        resume=(folder / "recipe.yaml").is_file(),
        progress=Progress(quiet=True),
    )
    checkpoint = latest_checkpoint(folder)
    assert checkpoint is not None
    return checkpoint


def measure_run(way: str, seed: int, model: Path, folder: Path) -> dict[str, Any]:
    """Train a run and return its seconds per update and counts."""
    began = time.perf_counter()
    after_warm_up = {"supervised": None, "policy.tiny": None, "policy.path": str(model)}
    with longest_pause() as pause:
        train(build_recipe(seed, **after_warm_up, **WAYS[way]), folder, progress=Progress(quiet=True))
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
    """Measure the longest time in seconds without a heartbeat within the block; the value is set after it."""
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


def measure_undisturbed(way: str, seed: int, model: Path) -> dict[str, Any]:
    """Return a measurement without suspension; a run is never resumed, because its time would be wrong."""
    while True:
        with tempfile.TemporaryDirectory() as folder:
            figures = measure_run(way, seed, model, Path(folder) / "run")
        if figures["longest pause in seconds"] < PAUSE:
            return figures
        print(f"{way} {seed}: suspended for {figures['longest pause in seconds']:.0f} s, repeated", file=sys.stderr)


def main() -> None:
    """Run both ways, print the table, and optionally store the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="folder of runs; finished ones are reused")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="store the result in benchmarks/results/evidence")
    arguments = parser.parse_args()
    settings = read_bench(BENCHES / "forty-turns.yaml")
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as passing:
        root = arguments.folder or Path(passing)
        for seed in range(arguments.seeds):
            for way in WAYS:
                path = root / f"{way}-{seed}.json"
                if not path.is_file():
                    figures = measure_undisturbed(way, seed, train_warm_up(seed, root / f"warm-{seed}"))
                    path.write_text(json.dumps(figures))
                measures = json.loads(path.read_text())
                print(way, seed, measures, file=sys.stderr, flush=True)
                rows.setdefault(way, {})[seed] = build_row(settings, way, seed, measures, [1.0])
    result = build_result("forty-turns", settings, rows, world="demo", machine=describe_machine(), budget={}, tasks=1)
    if arguments.write:
        store_result(result)
    print(json.dumps(result) if arguments.json else page(result))


if __name__ == "__main__":
    main()
