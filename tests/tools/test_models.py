"""A frozen model as a tool: asked at its price, told of with its skill, the same again by its seed."""

import asyncio
import functools

import pytest

from whetstone.chat import ToolCall
from whetstone.errors import RecipeError
from whetstone.tools import Budget, FrozenModel, Models, Toolset
from whetstone.trajectory import Task

SMALL = FrozenModel("small", lambda said, tools, seed: f"{said[-1].text}? {seed}", 1.0, 0.5, "plants")


async def echo(said, tools, seed):
    return said[-1].text.upper()


MODELS = {"small": SMALL, "large": FrozenModel("large", echo, 16.0)}


def called(toolset, *calls, seed=3):
    """Answers to calls of an episode."""

    async def main():
        await toolset.open(Task("t", "rose oak"), seed=seed)
        return [await toolset.call(ToolCall(name, arguments)) for name, arguments in calls]

    return asyncio.run(main())


def toolset(*more, **options):
    return Toolset([functools.partial(Models, models=MODELS, **options), *more])


def test_each_model_is_a_tool_at_its_price():
    first, second = called(toolset(), ("ask_large", '{"question": "who?"}'), ("ask_small", '{"question": "where"}'))
    assert (first.text, first.record.cost) == ("WHO?", 16.0)
    assert second.text.startswith("where? ")
    assert second.record.cost == 1.0


def test_the_policy_is_told_what_a_model_can_do_and_takes():
    small, large = toolset().specs
    assert small.description == "Ask the model small. plants. Costs 1. Takes about 0.5 s."
    assert large.description == "Ask the model large. Costs 16."
    assert small.parameters["required"] == ["question"]


def test_the_question_may_be_the_tasks():
    asking = toolset(question="task", include=["large"])
    assert [spec.name for spec in asking.specs] == ["ask_large"]
    assert called(asking, ("ask_large", "{}"))[0].text == "ROSE OAK"


def test_the_same_question_at_the_same_place_is_answered_the_same():
    calls = [("ask_small", '{"question": "x"}')] * 2
    once, again = called(toolset(), *calls), called(toolset(), *calls)
    assert [answer.text for answer in once] == [answer.text for answer in again]
    assert once[0].text != once[1].text  # asked again it is another draw


def test_what_several_charge_for_a_call_adds_up():
    paid = toolset(functools.partial(Budget, total=100.0, prices={"ask_large": 2.0}))
    assert called(paid, ("ask_large", '{"question": "x"}'))[0].record.cost == 18.0


def test_a_name_that_is_none_is_told_with_the_nearest():
    with pytest.raises(RecipeError, match='no model "smal"; did you mean "small"'):
        Models(models=MODELS, include=["smal"])
    with pytest.raises(RecipeError, match="the recipe has none"):
        Models()
