"""What tests of environments share: each world of ours by name, and how its tasks and rewards are made.

`python tests/tests_worlds.py` renews the golden traces, after a rule was changed on purpose.
"""

import asyncio
import functools
import json
from pathlib import Path

import pytest

from tests_sandbox import needs_isolation
from whetstone.cli.environments import contract_of
from whetstone.environments import ENVIRONMENTS, TASKS_OF_WORLDS, is_game, played
from whetstone.evaluation.contract import RandomPolicy, play

NATIVE = (
    "adventure",
    "apis",
    "battleship",
    "bug_repair",
    "chores",
    "bargaining",
    "multi_hop_search",
    "frozen_lake",
    "household",
    "knapsack",
    "negotiation",
    "sokoban",
    "support",
    "tables",
    "text_to_sql",
    "twenty_questions",
    "web_shop",
    "wordle",
)
IN_SANDBOX = ("bug_repair", "chores", "tables")
WITH_ISOLATION = [pytest.param(name, marks=needs_isolation) if name in IN_SANDBOX else name for name in NATIVE]
"""Each world as a parameter."""
RETAIL = Path(__file__).parents[2] / "shared" / "data" / "tau2" / "retail"
needs_retail = pytest.mark.skipif(
    not (RETAIL / "db.json").is_file(),
    reason=f"tau2-bench's retail data is missing: put db.json and the rest into {RETAIL}",
)
AIRLINE = RETAIL.parent / "airline"
needs_airline = pytest.mark.skipif(
    not (AIRLINE / "db.json").is_file(),
    reason=f"tau2-bench's airline data is missing: put its data/tau2/domains/airline into {AIRLINE.parent}",
)


def contract(name, *, episodes=20, **options):
    return contract_of(name, options, episodes=episodes)


def source_of(name, **options):
    return TASKS_OF_WORLDS[name](**options)


def environment_of(name, **options):
    part = ENVIRONMENTS[name]
    return (played(part) if is_game(part) else part)(**options)


def by_expert(name, task, source, **options):
    """The expert's episode of a task."""
    policy = lambda said, tools, admissible: source.demonstrate(task, said, tools)  # noqa: E731
    return asyncio.run(play(functools.partial(environment_of, name, **options), task, policy, seed=7))


def by_commands(name, task, commands, **options):
    """An episode of these commands, as text."""
    from whetstone.chat import assistant

    left = iter(commands)
    policy = lambda said, tools, admissible: assistant(next(left))  # noqa: E731
    make = functools.partial(environment_of, name, actions="text", **options)
    return asyncio.run(play(make, task, policy, seed=7, max_turns=len(commands)))


GOLDEN = Path(__file__).parent / "golden" / "worlds.json"


def trace(name):
    """(the task, digests of the expert's episode and of one of chance)"""
    source = source_of(name)
    task = source.task(1)
    shown = by_expert(name, task, source)
    make = functools.partial(environment_of, name)
    chance = asyncio.run(play(make, task, RandomPolicy(3).action, seed=7, max_turns=12))
    return [task.id, shown.digest, chance.digest]


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: trace(name) for name in NATIVE}, indent=1) + "\n")
