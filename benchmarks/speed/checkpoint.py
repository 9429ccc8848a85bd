"""Cost of checkpoints at 18 million parameters: training with a checkpoint per step against none.

A step is only an update on 8 groups of 8 tool episodes (`learner.py`); with sampling, steps are longer and the
relative cost is smaller. Steps with and without a checkpoint alternate. Two costs are measured: the wait until a copy
of the state is taken, and the slowdown of the step during which the checkpoint is written.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from circumstances import circumstances
from learner import SETTINGS, build_groups, build_model, surrogate
from whetstone.compute_thread import run_in_compute_thread
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.policies import Policy, build_tiny
from whetstone.record.checkpoint import Checkpoints, Position
from whetstone.trajectory import Segment


async def measure(steps: int, folder: Path) -> dict[str, list[float]]:
    """Return the seconds of plain steps, of steps during writing, until the copy was taken and until it was written."""
    tokenizer = build_tiny(["Compute 12"], hidden=8, heads=1, layers=1).tokenizer
    policy = Policy(build_model("20m"), tokenizer)
    learner = await run_in_compute_thread(ModelTrainer, policy, SETTINGS)
    segments = build_groups("20m", 8)
    checkpoints = Checkpoints(folder, keep=set())
    seconds: dict[str, list[float]] = {"plain": [], "beside": [], "stall": [], "written": []}
    await run_in_compute_thread(run_update, learner, segments)
    for number in range(steps):
        seconds["plain"].append(await run_in_compute_thread(run_update, learner, segments))
        began = time.perf_counter()
        position = Position("reinforcement", {"reinforcement": number + 1}, number + 1)
        path = await checkpoints.save(policy, learner.state_dict(), position, last=1, every=None)
        seconds["stall"].append(time.perf_counter() - began)
        waiting = asyncio.create_task(wait_until_written(checkpoints, began))
        seconds["beside"].append(await run_in_compute_thread(run_update, learner, segments))
        seconds["written"].append(await waiting)
        assert path.is_dir()
        shutil.rmtree(path)
    return seconds


async def wait_until_written(checkpoints: Checkpoints, began: float) -> float:
    """Return the seconds until a checkpoint is on disk."""
    await checkpoints.wait_until_written()
    return time.perf_counter() - began


def run_update(learner: ModelTrainer, segments: Sequence[Segment]) -> float:
    """Run an update and return its seconds."""
    began = time.perf_counter()
    learner.step(segments, surrogate)
    return time.perf_counter() - began


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        seconds = asyncio.run(measure(arguments.steps, Path(folder)))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result: dict[str, Any] = {
        "name": "checkpoint",
        "measured": {name: [min(values), medians[name], max(values)] for name, values in seconds.items()},
        "ratios": {
            "stall": medians["stall"] / medians["plain"],
            "beside": (medians["beside"] - medians["plain"]) / medians["plain"],
        },
        "goal": "stall at most 0.02 of a step",
        "bound": "a copy of weights and optimizer state in memory",
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(
        f"{medians['plain']:.2f} s per step; training waits {medians['stall']:.3f} s for a checkpoint "
        f"({result['ratios']['stall']:.2%}); the step during which it is written takes "
        f"{result['ratios']['beside']:+.2%}; on disk after {medians['written']:.2f} s"
    )


if __name__ == "__main__":
    main()
