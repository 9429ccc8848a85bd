"""Every built-in world meets the contract of environments and reproduces its golden traces."""

import asyncio
import functools
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.environments import (
    GOLDEN,
    IN_SANDBOX,
    NATIVE,
    RETAIL,
    WITH_ISOLATION,
    contract,
    environment_of,
    needs_retail,
    source_of,
    trace,
)
from support.slow import examples, mostly_slow
from whetstone.evaluation.check_result import CheckStatus
from whetstone.evaluation.environment_checks import RandomPolicy, check_contract, play_with_policy


async def check_world(contract):
    return [check async for check in check_contract(contract)]


@pytest.mark.parametrize("name", mostly_slow(WITH_ISOLATION, quick=["wordle"]))
def test_world_meets_the_contract_and_the_expert_succeeds(name):
    if name in IN_SANDBOX:  # 64 concurrent episodes wait for each other on a busy machine
        looked_at = contract(name, episodes=40, tool_timeout_seconds=120.0)
    else:
        looked_at = contract(name, episodes=100)
    looked_at.needs_process = name in ("household", "support")  # a new process takes seconds; one of each kind
    looked_at.concurrent = 64
    checks = asyncio.run(check_world(looked_at))
    assert [check for check in checks if check.verdict is CheckStatus.FAIL] == []
    assert looked_at.numbers["expert"] >= 0.99
    assert looked_at.numbers["random"] < looked_at.numbers["expert"]


@needs_retail
@pytest.mark.slow
def test_retail_domain_meets_the_contract():
    looked_at = contract("retail", episodes=60, path=str(RETAIL))
    looked_at.needs_process = False
    checks = asyncio.run(check_world(looked_at))
    assert [check for check in checks if check.verdict is CheckStatus.FAIL] == []
    assert looked_at.numbers["expert"] == 1.0


@pytest.mark.parametrize("name", WITH_ISOLATION)
def test_world_reproduces_its_golden_trace(name):
    """Compare golden traces: an expert episode and a random one. A change of a rule requires a change of the file:
    `PYTHONPATH=tests python -m support.environments` renews it."""
    expected, compared = json.loads(GOLDEN.read_text())[name], slice(None)
    if name == "tables" and sys.version_info[:2] != (3, 11):
        compared = slice(2)  # the random episode reads errors of Python, whose suggestions differ between its versions
    assert trace(name)[compared] == expected[compared]


@pytest.mark.parametrize("name", [name for name in NATIVE if name not in IN_SANDBOX])
@examples(12)
@given(seeds=st.lists(st.integers(0, 10**6), min_size=2, max_size=12), order=st.randoms())
def test_interleaved_episodes_equal_separate_ones(name, seeds, order):
    source = source_of(name)
    make = functools.partial(environment_of, name)

    async def play_separately(seed):
        return await play_with_policy(
            make, source.task(seed % 7), RandomPolicy(seed).choose_action, seed=seed, max_turns=8
        )

    async def wandering(environment, turns):
        for _ in range(order.randint(0, 4)):
            await asyncio.sleep(0)

    async def play_interleaved(seed):
        task = source.task(seed % 7)
        return await play_with_policy(
            make, task, RandomPolicy(seed).choose_action, seed=seed, max_turns=8, between=wandering
        )

    async def all_beside():
        return await asyncio.gather(*map(play_interleaved, seeds))

    single = [asyncio.run(play_separately(seed)).transcript for seed in seeds]
    assert [played.transcript for played in asyncio.run(all_beside())] == single


@pytest.mark.parametrize(
    "name", mostly_slow(NATIVE, quick=[name for name in NATIVE if name not in ("bug_repair", "sokoban")])
)
def test_held_out_tasks_are_never_trained_for_any_seed_and_levels(name):
    held_out = {task.id for task in source_of(name, seed=5).held_out(60)}
    trained = {source_of(name, seed=seed).task(index).id for seed in (0, 5) for index in range(150)}
    one_level = {source_of(name, seed=1, levels=[2]).task(index).id for index in range(50)}
    assert held_out
    assert not held_out & (trained | one_level)
    domain = {"bargaining": "dealing", "multi_hop_search": "encyclopaedia"}.get(name, name)  # ids keep their first name
    assert all(id.startswith(f"{domain}/2/") for id in one_level)


def test_unknown_level_is_refused_with_the_available_ones():
    from whetstone.plugins import OptionError

    with pytest.raises(OptionError, match=r"levels.1: sokoban has levels 1 to 3, got 4"):
        source_of("sokoban", levels=[1, 4])
    with pytest.raises(OptionError, match="the list is empty"):
        source_of("sokoban", levels=[])
