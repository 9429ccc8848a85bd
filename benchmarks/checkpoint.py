"""How long does training stand still for a checkpoint? At 18 million parameters, every step saved against none.

A step here is an update alone, of 8 groups of 8 tool episodes (`learner.py`); with sampling a step is longer and the
share smaller. Steps with and without a checkpoint take turns. What a checkpoint costs is told twice: how long training
waits until its copy is taken, and how much longer the step beside which it is written takes.
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
from learner import SETTINGS, groups, model_of, surrogate
from whetstone.compute_thread import run_in_compute_thread
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.policies import Policy, build_tiny
from whetstone.record.checkpoint import Checkpoints, Position
from whetstone.trajectory import Segment


async def measure(steps: int, folder: Path) -> dict[str, list[float]]:
    """Seconds: of plain steps, of steps beside writing, until a copy was taken, until it was on disk."""
    tokenizer = build_tiny(["Compute 12"], hidden=8, heads=1, layers=1).tokenizer
    policy = Policy(model_of("20m"), tokenizer)
    learner = await run_in_compute_thread(ModelTrainer, policy, SETTINGS)
    segments = groups("20m", 8)
    checkpoints = Checkpoints(folder, keep=set())
    found: dict[str, list[float]] = {"plain": [], "beside": [], "stall": [], "written": []}
    await run_in_compute_thread(updated, learner, segments)
    for number in range(steps):
        found["plain"].append(await run_in_compute_thread(updated, learner, segments))
        began = time.perf_counter()
        position = Position("reinforcement", {"reinforcement": number + 1}, number + 1)
        path = await checkpoints.save(policy, learner.state_dict(), position, last=1, every=None)
        found["stall"].append(time.perf_counter() - began)
        waiting = asyncio.create_task(on_disk(checkpoints, began))
        found["beside"].append(await run_in_compute_thread(updated, learner, segments))
        found["written"].append(await waiting)
        assert path.is_dir()
        shutil.rmtree(path)
    return found


async def on_disk(checkpoints: Checkpoints, began: float) -> float:
    """Seconds until it was."""
    await checkpoints.written()
    return time.perf_counter() - began


def updated(learner: ModelTrainer, segments: Sequence[Segment]) -> float:
    """Seconds one update took."""
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
        found = asyncio.run(measure(arguments.steps, Path(folder)))
    middle = {name: statistics.median(values) for name, values in found.items()}
    told: dict[str, Any] = {
        "name": "checkpoint",
        "measured": {name: [min(values), middle[name], max(values)] for name, values in found.items()},
        "ratios": {
            "stall": middle["stall"] / middle["plain"],
            "beside": (middle["beside"] - middle["plain"]) / middle["plain"],
        },
        "goal": "stall at most 0.02 of a step",
        "bound": "a copy of weights and optimiser state in memory",
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(told))
        return
    print(
        f"a step {middle['plain']:.2f} s; training waits {middle['stall']:.3f} s for a checkpoint "
        f"({told['ratios']['stall']:.2%}); the step beside which it is written takes {told['ratios']['beside']:+.2%}; "
        f"on disk after {middle['written']:.2f} s"
    )


if __name__ == "__main__":
    main()
