"""Fault injection: noise depends on the episode's seed and actions, and failed calls have no effect."""

import asyncio
import itertools

import pytest

from whetstone.assembly import assemble
from whetstone.chat import ToolCall, assistant
from whetstone.environments import GameEnvironment, Noisy, ToolEnvironment
from whetstone.environments.built_in.frozen_lake import FrozenLake
from whetstone.evaluation.environment_checks import RandomPolicy, play_with_policy
from whetstone.recipe import load_recipe
from whetstone.trajectory import Task

LAKE = Task("lake", "", {"lake": ["....", "....", "....", "...."], "start": [0, 0], "goal": [3, 3]})


def lake():
    return GameEnvironment(FrozenLake, actions="text", instruction="")


def counter():
    """Build an environment with a tool that counts its calls."""

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
    texts = [(await environment.step(call)).observation.messages[0].text for _ in range(number)]
    await environment.close()
    return texts


def test_zero_noise_changes_nothing():
    one = asyncio.run(play_with_policy(lake, LAKE, RandomPolicy(1).choose_action, seed=3))
    other = asyncio.run(play_with_policy(lambda: Noisy(lake()), LAKE, RandomPolicy(1).choose_action, seed=3))
    assert other.transcript == one.transcript


def test_failed_calls_do_not_reach_the_tool():
    texts = asyncio.run(ticks(Noisy(counter(), error_rate=0.5), 40))
    counted = [int(text) for text in texts if text.isdigit()]
    assert counted == list(range(1, len(counted) + 1))
    assert 5 < len(counted) < 35
    assert all("try again" in text for text in texts if not text.isdigit())


def test_stale_answer_is_the_previous_one_and_the_call_is_made():
    counts = [int(text) for text in asyncio.run(ticks(Noisy(counter(), stale_rate=0.5), 40))]
    assert any(a == b for a, b in itertools.pairwise(counts))
    assert all(number in (k, *range(1, k)) for k, number in enumerate(counts, start=1))
    assert max(counts) > 30  # each call counts, for every answer


@pytest.mark.parametrize("how", [{"error_rate": 0.4}, {"stale_rate": 0.4}, {"error_rate": 0.2, "stale_rate": 0.2}])
def test_equal_actions_have_equal_noise(how):
    one = asyncio.run(ticks(Noisy(counter(), **how), 30))
    assert asyncio.run(ticks(Noisy(counter(), **how), 30)) == one


def test_final_answers_have_no_noise():
    async def answered():
        environment = Noisy(counter(), error_rate=0.99)
        await environment.reset(LAKE, seed=0)
        result = await environment.step(assistant("42"))
        await environment.close()
        return result.terminated

    assert asyncio.run(answered())


def test_recipe_adds_noise_to_any_environment(small_demo):
    environment = assemble(small_demo("environment.fault_injection.error_rate=0.5")).environment()
    assert isinstance(environment, Noisy)
    assert environment.error_rate == 0.5
    assert assemble(small_demo()).environment().__class__ is ToolEnvironment
    with pytest.raises(Exception, match=r"environment.fault_injection.error_rate"):
        load_recipe("demo", ["environment.fault_injection.error_rate=1.5"])
