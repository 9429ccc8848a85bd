"""Noise is chance of the episode's: the same actions meet the same noise, and what failed never happened."""

import asyncio
import itertools

import pytest

from whetstone.assembly import assemble
from whetstone.chat import ToolCall, assistant
from whetstone.environments import GameEnvironment, Noisy, ToolEnvironment
from whetstone.environments.native.frozen_lake import FrozenLake
from whetstone.evaluation.contract import RandomPolicy, play
from whetstone.recipe import load_recipe
from whetstone.trajectory import Task

LAKE = Task("lake", "", {"lake": ["....", "....", "....", "...."], "start": [0, 0], "goal": [3, 3]})


def lake():
    return GameEnvironment(FrozenLake, actions="text", instruction="")


def counter():
    """A tool that counts how often it was called."""

    class Counter:
        def __init__(self):
            self.count = 0

        def tick(self) -> int:
            """Count."""
            self.count += 1
            return self.count

    return ToolEnvironment(tools=[Counter])


async def ticks(environment, number):
    await environment.reset(LAKE, seed=3)
    call = assistant("", ToolCall("tick", "{}", "c"))
    said = [(await environment.step(call)).observation.messages[0].text for _ in range(number)]
    await environment.close()
    return said


def test_without_noise_nothing_changes():
    one = asyncio.run(play(lake, LAKE, RandomPolicy(1).action, seed=3))
    other = asyncio.run(play(lambda: Noisy(lake()), LAKE, RandomPolicy(1).action, seed=3))
    assert other.transcript == one.transcript


def test_what_failed_never_reached_the_tool():
    texts = asyncio.run(ticks(Noisy(counter(), error_rate=0.5), 40))
    counted = [int(text) for text in texts if text.isdigit()]
    assert counted == list(range(1, len(counted) + 1))
    assert 5 < len(counted) < 35
    assert all("try again" in text for text in texts if not text.isdigit())


def test_an_outdated_answer_is_the_one_before_though_the_call_was_made():
    counts = [int(text) for text in asyncio.run(ticks(Noisy(counter(), stale_rate=0.5), 40))]
    assert any(a == b for a, b in itertools.pairwise(counts))
    assert all(number in (k, *range(1, k)) for k, number in enumerate(counts, start=1))
    assert max(counts) > 30  # each call counted, whatever was shown


@pytest.mark.parametrize("how", [{"error_rate": 0.4}, {"stale_rate": 0.4}, {"error_rate": 0.2, "stale_rate": 0.2}])
def test_the_same_actions_meet_the_same_noise(how):
    one = asyncio.run(ticks(Noisy(counter(), **how), 30))
    assert asyncio.run(ticks(Noisy(counter(), **how), 30)) == one


def test_an_answer_has_no_noise():
    async def answered():
        environment = Noisy(counter(), error_rate=0.99)
        await environment.reset(LAKE, seed=0)
        result = await environment.step(assistant("42"))
        await environment.close()
        return result.terminated

    assert asyncio.run(answered())


def test_a_recipe_makes_any_environment_noisy(small_demo):
    environment = assemble(small_demo("environment.fault_injection.error_rate=0.5")).environment()
    assert isinstance(environment, Noisy)
    assert environment.error_rate == 0.5
    assert assemble(small_demo()).environment().__class__ is ToolEnvironment
    with pytest.raises(Exception, match=r"environment.fault_injection.error_rate"):
        load_recipe("demo", ["environment.fault_injection.error_rate=1.5"])
