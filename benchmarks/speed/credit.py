"""Time of advantage estimation for a large batch: every estimator on 1,024 trajectories of 2,048 action tokens.

128 tasks with 8 trajectories of 8 turns each, some of them forked; the columns are computed before. The reference is
the recurrence of generalized advantage estimation as a loop over Python floats, on a thirty-second of the batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from circumstances import circumstances
from whetstone.algorithms import ADVANTAGE_TRANSFORMS, ADVANTAGES, annotated_level, column_names
from whetstone.algorithms.advantages import gae

GROUPS, SIZE, TURNS, TOKENS = 128, 8, 8, 256
_REPEATS = 5


def build_batch() -> dict[str, Tensor]:
    """Return random values for every column that estimators read."""
    draw = torch.Generator().manual_seed(0)
    trajectories, turns = GROUPS * SIZE, GROUPS * SIZE * TURNS
    count = {"trajectory": trajectories, "turn": turns, "token": turns * TOKENS}
    turn_trajectories = torch.arange(trajectories).repeat_interleave(TURNS)
    columns = {
        "group": torch.arange(GROUPS).repeat_interleave(SIZE),
        "trajectory": turn_trajectories,
        "turn_index": torch.arange(TURNS).repeat(trajectories),
        "turn": torch.arange(turns).repeat_interleave(TOKENS),
        "token_trajectory": turn_trajectories.repeat_interleave(TOKENS),
        "nodes": torch.arange(turns),
        "state_keys": torch.randint(0, 4, (turns,), generator=draw),
        "tags": torch.randint(-1, 3, (turns,), generator=draw),
        "roles": torch.randint(0, 2, (trajectories,), generator=draw),
        "outcomes": torch.randint(0, 2, (trajectories,), generator=draw).double(),
        "hardness": torch.ones(trajectories).double(),
        "lengths": torch.full((trajectories,), TURNS * TOKENS).double(),
    }
    odd = (turn_trajectories % 2 == 1) & (
        columns["turn_index"] < TURNS // 2
    )  # every second trajectory shares half of the previous one
    columns["nodes"][odd] -= TURNS
    levels = {name: level for function in _functions().values() for name, level in _levels(function)}
    for name, level in sorted(levels.items()):
        if name not in columns:
            columns[name] = torch.rand(count[level], generator=draw, dtype=torch.float64)
    return columns


def _functions() -> dict[str, Any]:
    return {**ADVANTAGES, **ADVANTAGE_TRANSFORMS}


def _levels(function: Callable[..., Any]) -> list[tuple[str, str]]:
    return [(name, annotated_level(function, name)) for name in column_names(function)]


def compute_gae_loop(rewards: list[float], values: list[float], discount: float, trace: float) -> list[float]:
    """Compute the generalized advantage estimates of one trajectory in a loop."""
    advantages, ahead, carried = [], 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        carried = reward + discount * ahead - value + discount * trace * carried
        ahead = value
        advantages.append(carried)
    return advantages[::-1]


def measure_seconds(work: Callable[[], Any]) -> float:
    """Return the median seconds of several calls after a warm-up call."""
    work()
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Measure all estimators and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    began = time.perf_counter()
    columns = build_batch()
    took = {}
    for name, function in _functions().items():
        level = dict(_levels(function)).get("advantages")
        inputs = dict(columns)
        if level is not None:
            inputs["advantages"] = columns["token_rewards" if level == "token" else "turn_rewards"]
        values_read = [inputs[column] for column in column_names(function)]
        took[name] = measure_seconds(partial(function, *values_read))
    share = 32
    is_kept = columns["token_trajectory"] < GROUPS * SIZE // share
    rewards, values = (columns[name][is_kept].tolist() for name in ("token_rewards", "token_values"))
    length = TURNS * TOKENS
    loop_seconds = share * measure_seconds(
        lambda: [
            compute_gae_loop(rewards[k : k + length], values[k : k + length], 1.0, 0.95)
            for k in range(0, len(rewards), length)
        ]
    )
    last = torch.zeros(GROUPS * SIZE, dtype=torch.float64)
    batched_seconds = measure_seconds(
        lambda: gae(columns["token_rewards"], columns["token_values"], columns["token_trajectory"], last, discount=1.0)
    )
    result = {
        "name": "credit",
        "measured": {"milliseconds": {name: 1000 * seconds for name, seconds in took.items()}},
        "ratios": {"vs_loops": loop_seconds / batched_seconds},
        "goal": "milliseconds for 1,024 trajectories of 2,048 tokens",
        "bound": "reading 2 million tokens a few times: 16 MB a column",
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for name, seconds in sorted(took.items(), key=lambda each: each[1]):
        print(f"{name:<30} {1000 * seconds:8.1f} ms")
    print(f"vs_loops: {loop_seconds / batched_seconds:.0f}")


if __name__ == "__main__":
    main()
