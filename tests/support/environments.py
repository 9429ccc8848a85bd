"""Helpers for tests of environments: each built-in one by name, with its tasks and rewards.

`PYTHONPATH=tests python -m support.environments` renews the golden traces, after a rule was changed on purpose.
"""

import asyncio
import functools
import json
from pathlib import Path

import pytest

from support.sandbox import needs_isolation
from whetstone.cli.environments import create_contract
from whetstone.environments import ENVIRONMENTS, TASKS_OF_WORLDS, as_environment, is_game
from whetstone.evaluation.environment_checks import RandomPolicy, play_with_policy

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
    "web_pages",
    "web_shop",
    "wordle",
)
IN_SANDBOX = ("bug_repair", "chores", "tables")
WITH_ISOLATION = [pytest.param(name, marks=needs_isolation) if name in IN_SANDBOX else name for name in NATIVE]
"""Each world as a parameter."""
RETAIL = Path(__file__).parents[3] / "shared" / "data" / "tau2" / "retail"
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
    return create_contract(name, options, episodes=episodes)


def source_of(name, **options):
    return TASKS_OF_WORLDS[name](**options)


def environment_of(name, **options):
    part = ENVIRONMENTS[name]
    return (as_environment(part) if is_game(part) else part)(**options)


def by_expert(name, task, source, **options):
    """Play the expert's episode of a task."""
    policy = lambda conversation, tools, admissible: source.demonstrate(task, conversation, tools)  # noqa: E731
    return asyncio.run(play_with_policy(functools.partial(environment_of, name, **options), task, policy, seed=7))


def by_commands(name, task, commands, **options):
    """Play an episode of these commands as text."""
    from whetstone.chat import assistant

    left = iter(commands)
    policy = lambda conversation, tools, admissible: assistant(next(left))  # noqa: E731
    make = functools.partial(environment_of, name, actions="text", **options)
    return asyncio.run(play_with_policy(make, task, policy, seed=7, max_turns=len(commands)))


GOLDEN = Path(__file__).parents[1] / "golden" / "worlds.json"


def trace(name):
    """Return (the task, digests of an episode of the expert and of a random one)."""
    source = source_of(name)
    task = source.task(1)
    expert = by_expert(name, task, source)
    make = functools.partial(environment_of, name)
    chance = asyncio.run(play_with_policy(make, task, RandomPolicy(3).choose_action, seed=7, max_turns=12))
    return [task.id, expert.digest, chance.digest]


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: trace(name) for name in NATIVE}, indent=1) + "\n")
