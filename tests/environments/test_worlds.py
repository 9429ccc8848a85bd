"""Every world of ours keeps what environments promise, and plays as it played."""

import asyncio
import functools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests_slow import examples, mostly_slow
from tests_worlds import (
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
from whetstone.evaluation.checks import CheckStatus
from whetstone.evaluation.contract import RandomPolicy, check_contract, play


async def tried(contract):
    return [check async for check in check_contract(contract)]


@pytest.mark.parametrize("name", mostly_slow(WITH_ISOLATION, quick=["wordle"]))
def test_it_keeps_its_promises_and_the_expert_solves_it(name):
    if name in IN_SANDBOX:  # 64 side by side wait for each other on a busy machine
        looked_at = contract(name, episodes=40, tool_timeout_seconds=120.0)
    else:
        looked_at = contract(name, episodes=100)
    looked_at.needs_process = name in ("household", "support")  # a new process takes seconds; one of each kind
    looked_at.concurrent = 64
    checks = asyncio.run(tried(looked_at))
    assert [check for check in checks if check.verdict is CheckStatus.FAIL] == []
    assert looked_at.found["expert"] >= 0.99
    assert looked_at.found["random"] < looked_at.found["expert"]


@needs_retail
@pytest.mark.slow
def test_the_retail_domain_keeps_its_promises():
    looked_at = contract("retail", episodes=60, path=str(RETAIL))
    looked_at.needs_process = False
    checks = asyncio.run(tried(looked_at))
    assert [check for check in checks if check.verdict is CheckStatus.FAIL] == []
    assert looked_at.found["expert"] == 1.0


@pytest.mark.parametrize("name", WITH_ISOLATION)
def test_it_plays_as_it_played(name):
    """A golden trace: the expert's episode and one of chance. A change of a rule is a change of its file, on purpose:
    `python tests/tests_worlds.py` renews it."""
    assert trace(name) == json.loads(GOLDEN.read_text())[name]


@pytest.mark.parametrize("name", [name for name in NATIVE if name not in IN_SANDBOX])
@examples(12)
@given(seeds=st.lists(st.integers(0, 10**6), min_size=2, max_size=12), order=st.randoms())
def test_episodes_in_any_interleaving_are_what_they_are_alone(name, seeds, order):
    source = source_of(name)
    make = functools.partial(environment_of, name)

    async def alone(seed):
        return await play(make, source.task(seed % 7), RandomPolicy(seed).action, seed=seed, max_turns=8)

    async def wandering(environment, turns):
        for _ in range(order.randint(0, 4)):
            await asyncio.sleep(0)

    async def beside(seed):
        task = source.task(seed % 7)
        return await play(make, task, RandomPolicy(seed).action, seed=seed, max_turns=8, between=wandering)

    async def all_beside():
        return await asyncio.gather(*map(beside, seeds))

    single = [asyncio.run(alone(seed)).transcript for seed in seeds]
    assert [played.transcript for played in asyncio.run(all_beside())] == single


@pytest.mark.parametrize(
    "name", mostly_slow(NATIVE, quick=[name for name in NATIVE if name not in ("bug_repair", "sokoban")])
)
def test_held_out_tasks_are_never_trained_on_whatever_seed_and_levels(name):
    held_out = {task.id for task in source_of(name, seed=5).held_out(60)}
    trained = {source_of(name, seed=seed).task(index).id for seed in (0, 5) for index in range(150)}
    one_level = {source_of(name, seed=1, levels=[2]).task(index).id for index in range(50)}
    assert held_out
    assert not held_out & (trained | one_level)
    domain = {"bargaining": "dealing", "multi_hop_search": "encyclopaedia"}.get(name, name)  # ids keep their first name
    assert all(id.startswith(f"{domain}/2/") for id in one_level)


def test_a_level_that_is_none_is_refused_with_those_there_are():
    from whetstone.plugins import OptionError

    with pytest.raises(OptionError, match=r"levels.1: sokoban has levels 1 to 3, got 4"):
        source_of("sokoban", levels=[1, 4])
    with pytest.raises(OptionError, match="no level"):
        source_of("sokoban", levels=[])
