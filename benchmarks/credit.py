"""How long does credit take for a large batch? Every estimator on 1,024 trajectories of 2,048 action tokens.

128 tasks with 8 trajectories of 8 turns each, some of them forked; columns are there already. Beside it the recurrence
of generalised advantage estimation as a loop over Python floats, on a thirty-second of the batch.
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
from whetstone.algorithms import ADVANTAGE_TRANSFORMS, ADVANTAGES, columns_of, level_of
from whetstone.algorithms.advantages import gae

GROUPS, SIZE, TURNS, TOKENS = 128, 8, 8, 256
_REPEATS = 5


def batch() -> dict[str, Tensor]:
    """Every column estimators read, with numbers drawn by chance."""
    draw = torch.Generator().manual_seed(0)
    trajectories, turns = GROUPS * SIZE, GROUPS * SIZE * TURNS
    count = {"trajectory": trajectories, "turn": turns, "token": turns * TOKENS}
    of_turn = torch.arange(trajectories).repeat_interleave(TURNS)
    found = {
        "group": torch.arange(GROUPS).repeat_interleave(SIZE),
        "trajectory": of_turn,
        "turn_index": torch.arange(TURNS).repeat(trajectories),
        "turn": torch.arange(turns).repeat_interleave(TOKENS),
        "token_trajectory": of_turn.repeat_interleave(TOKENS),
        "nodes": torch.arange(turns),
        "state_keys": torch.randint(0, 4, (turns,), generator=draw),
        "tags": torch.randint(-1, 3, (turns,), generator=draw),
        "roles": torch.randint(0, 2, (trajectories,), generator=draw),
        "outcomes": torch.randint(0, 2, (trajectories,), generator=draw).double(),
        "hardness": torch.ones(trajectories).double(),
        "lengths": torch.full((trajectories,), TURNS * TOKENS).double(),
    }
    odd = (of_turn % 2 == 1) & (found["turn_index"] < TURNS // 2)  # every second one shares half of the one before
    found["nodes"][odd] -= TURNS
    levels = {name: level for function in _functions().values() for name, level in _levels(function)}
    for name, level in sorted(levels.items()):
        if name not in found:
            found[name] = torch.rand(count[level], generator=draw, dtype=torch.float64)
    return found


def _functions() -> dict[str, Any]:
    return {**ADVANTAGES, **ADVANTAGE_TRANSFORMS}


def _levels(function: Callable[..., Any]) -> list[tuple[str, str]]:
    return [(name, level_of(function, name)) for name in columns_of(function)]


def looped(rewards: list[float], values: list[float], discount: float, trace: float) -> list[float]:
    """Generalised advantage estimation of one trajectory."""
    found, ahead, carried = [], 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        carried = reward + discount * ahead - value + discount * trace * carried
        ahead = value
        found.append(carried)
    return found[::-1]


def seconds_of(work: Callable[[], Any]) -> float:
    """Median over a few times, after one that does not count."""
    work()
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Measure, and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    began = time.perf_counter()
    columns = batch()
    took = {}
    for name, function in _functions().items():
        level = dict(_levels(function)).get("advantages")
        given = dict(columns)
        if level is not None:
            given["advantages"] = columns["token_rewards" if level == "token" else "turn_rewards"]
        arguments_of = [given[column] for column in columns_of(function)]
        took[name] = seconds_of(partial(function, *arguments_of))
    share = 32
    kept = columns["token_trajectory"] < GROUPS * SIZE // share
    rewards, values = (columns[name][kept].tolist() for name in ("token_rewards", "token_values"))
    length = TURNS * TOKENS
    loops = share * seconds_of(
        lambda: [
            looped(rewards[k : k + length], values[k : k + length], 1.0, 0.95) for k in range(0, len(rewards), length)
        ]
    )
    last = torch.zeros(GROUPS * SIZE, dtype=torch.float64)
    ours = seconds_of(
        lambda: gae(columns["token_rewards"], columns["token_values"], columns["token_trajectory"], last, discount=1.0)
    )
    told = {
        "name": "credit",
        "measured": {"milliseconds": {name: 1000 * seconds for name, seconds in took.items()}},
        "ratios": {"vs_loops": loops / ours},
        "goal": "milliseconds for 1,024 trajectories of 2,048 tokens",
        "bound": "reading 2 million tokens a few times: 16 MB a column",
        **circumstances(began),
    }
    if arguments.json:
        print(json.dumps(told))
        return
    for name, seconds in sorted(took.items(), key=lambda each: each[1]):
        print(f"{name:<30} {1000 * seconds:8.1f} ms")
    print(f"vs_loops: {loops / ours:.0f}")


if __name__ == "__main__":
    main()
