"""BFCL conversations: turns, functions that appear later, and the checks."""

import asyncio
import importlib.util
import json

import pytest

from support.environments import environment_of, source_of
from whetstone.chat import ToolCall, assistant
from whetstone.environments.bfcl.bfcl_conversation import BfclConversation, read_call
from whetstone.environments.bfcl.bfcl_tasks import list_gold_turns
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.rewards import verdict

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("bfcl_eval") is None,
    reason="the leaderboard's services are not there: pip install --no-deps bfcl-eval",
)


def episode(task, steps, **options):
    left = iter(steps)
    make = lambda: environment_of("bfcl_multi_turn", **options)  # noqa: E731
    one = asyncio.run(play_with_policy(make, task, lambda *_: next(left), seed=0, max_turns=len(steps))).trajectory
    return asyncio.run(verdict(one, task)).success, one


def right(task):
    return [
        step for turn in list_gold_turns(task) for step in (*(assistant("", call) for call in turn), assistant("Done."))
    ]


def test_gold_calls_are_parsed_without_execution():
    assert read_call("mv('a', destination='b')") == ("mv", {"destination": "b"}, ["a"])
    with pytest.raises(ValueError, match="malformed"):
        read_call("mv(__import__('os').getcwd())")


@needs_package
@pytest.mark.parametrize("category", ["base", "miss_func", "miss_param"])
def test_expert_succeeds_and_empty_answers_fail(category):
    source = source_of("bfcl_multi_turn", category=category)
    for task in source.held_out(3):
        assert episode(task, right(task))[0] is True
        silent = [assistant("Done.")] * len(task.private["question"])
        assert episode(task, silent)[0] is False


@needs_package
def test_incomplete_turn_fails_with_its_place():
    task = source_of("bfcl_multi_turn").held_out(1)[0]
    steps = right(task)
    ok, one = episode(task, [step for step in steps if "mkdir" not in str(step.tool_calls)])
    assert ok is False
    assert one.final["why_not"].startswith("turn 0: GorillaFileSystem.")


@needs_package
def test_missing_function_appears_in_its_turn():
    task = source_of("bfcl_multi_turn", category="miss_func").held_out(1)[0]
    ((turn, (name,)),) = task.private["missed_function"].items()

    async def offered():
        world = BfclConversation()
        names = [{spec.name for spec in (await world.reset(task, seed=0)).tools}]
        for _ in range(int(turn)):
            observation = (await world.step(assistant("Done."))).observation
            names.append({spec.name for spec in observation.tools} or names[-1])
        return names

    names = asyncio.run(offered())
    assert [name in one for one in names] == [False] * int(turn) + [True]


@needs_package
def test_endless_turn_is_truncated_and_fails():
    task = source_of("bfcl_multi_turn").held_out(1)[0]
    ok, one = episode(task, [assistant("", ToolCall("ls", json.dumps({})))] * 9, max_steps=4)
    assert ok is False
    assert "more than 4 steps" in one.final["why_not"]
    assert len(one.turns) == 5
