"""Difficulty before training: random success by worked numbers, greedy steps against an exhaustive search."""

import asyncio
import itertools
import json
import subprocess
import sys

import pytest

from whetstone.chat import user
from whetstone.environments.protocol import Observation, StepResult
from whetstone.evaluation import DifficultyProbe, plan_greedily
from whetstone.rewards.environment_state.environment_outcome import verdict
from whetstone.trajectory import EndReason, Task


class Doors:
    """Three doors in a row; the right ones are `task.private["doors"]`, and each right one has a reward."""

    def __init__(self, *, dense):
        self.dense = dense

    async def reset(self, task, *, seed):
        self.doors, self.opened, self.alive = task.private["doors"], 0, True
        return Observation((user("Which door?"),))

    def admissible(self):
        return ["left", "right"]

    async def step(self, action):
        self.alive = self.alive and action.text == self.doors[self.opened]
        self.opened += 1
        ended = EndReason.TERMINATED if self.opened == len(self.doors) else None
        return StepResult(Observation((user("next"),)), float(self.alive) * self.dense, ended)

    def verdict(self):
        return {"score": float(self.alive and self.opened == len(self.doors)), "success": self.alive}

    async def close(self):
        pass


def measure(doors, *, dense=0.0, **options):
    probe = DifficultyProbe(lambda: Doors(dense=dense), verdict, max_turns=5, **options)
    return asyncio.run(probe.measure(Task("t", "Which door?", {"doors": doors}, {"kind": "doors"})))


def test_random_players_solve_half_of_the_tasks_with_one_door():
    row = measure(["left"], episodes=400)
    assert row.random == pytest.approx(0.5, abs=0.1)  # standard deviation 0.025
    assert row.greedy
    assert row.kind == "doors"


def test_greedy_steps_solve_what_random_players_rarely_solve():
    row = measure(["left", "right", "left", "right"], episodes=64)
    assert row.random < 0.2  # expected 1/16
    assert row.greedy


def test_lookahead_of_all_turns_needs_one_episode_per_value():
    doors = ["left", "right", "left", "right"]
    assert measure(doors, episodes=1, lookahead=4).greedy  # the sequences are enumerated


@pytest.mark.parametrize("lookahead", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_greedy_plan_equals_a_naive_implementation(seed, lookahead):
    depth, rewards = 3, {}
    for number, leaf in enumerate(itertools.product("ab", repeat=3)):
        rewards[leaf] = (number * 7 + seed * 3) % 5 / 4

    def mean(prefix):
        below = [value for leaf, value in rewards.items() if leaf[: len(prefix)] == prefix]
        return sum(below) / len(below)

    async def actions(prefix):
        return "ab" if len(prefix) < depth else ""

    async def value(prefix):
        return mean(prefix)

    naive = ()
    while len(naive) < depth:
        longer = itertools.product("ab", repeat=min(lookahead, depth - len(naive)))
        naive += max(((*naive, *more) for more in longer), key=mean)[len(naive) :][:1]
    assert asyncio.run(plan_greedily(actions, value, lookahead=lookahead)) == naive


def test_command_prints_the_success_of_each_player():
    command = [sys.executable, "-m", "whetstone", "tasks", "difficulty", "frozen-lake", "--tasks", "1", "--episodes",
               "4", "--max-turns", "4", "--json"]  # fmt: skip
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (row,) = report["tasks"]
    assert row["policy"] is None
    assert 0 <= row["random"] <= 1
    assert report["episodes"] == row["episodes"] > 8
