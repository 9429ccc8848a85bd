"""A frozen model as a tool: price per call, description of its skill, deterministic by its seed."""

import asyncio
import functools

import pytest

from whetstone.chat import ToolCall
from whetstone.errors import RecipeError
from whetstone.tools import Budget, FrozenModel, Models, Toolset
from whetstone.trajectory import Task

SMALL = FrozenModel("small", lambda messages, tools, seed: f"{messages[-1].text}? {seed}", 1.0, 0.5, "plants")


async def echo(messages, tools, seed):
    return messages[-1].text.upper()


MODELS = {"small": SMALL, "large": FrozenModel("large", echo, 16.0)}


def call_in_episode(toolset, *calls, seed=3):
    """Return the results of calls of an episode."""

    async def main():
        await toolset.open(Task("t", "rose oak"), seed=seed)
        return [await toolset.call(ToolCall(name, arguments)) for name, arguments in calls]

    return asyncio.run(main())


def toolset(*more, **options):
    return Toolset([functools.partial(Models, models=MODELS, **options), *more])


def test_each_model_is_a_tool_with_its_price():
    first, second = call_in_episode(
        toolset(), ("ask_large", '{"question": "who?"}'), ("ask_small", '{"question": "where"}')
    )
    assert (first.text, first.record.cost) == ("WHO?", 16.0)
    assert second.text.startswith("where? ")
    assert second.record.cost == 1.0


def test_policy_reads_skill_and_price_of_a_model():
    small, large = toolset().specs
    assert small.description == "Ask the model small. plants. Costs 1. Takes about 0.5 s."
    assert large.description == "Ask the model large. Costs 16."
    assert small.parameters["required"] == ["question"]


def test_question_can_be_that_of_the_task():
    asking = toolset(question="task", include=["large"])
    assert [spec.name for spec in asking.specs] == ["ask_large"]
    assert call_in_episode(asking, ("ask_large", "{}"))[0].text == "ROSE OAK"


def test_repeated_question_has_the_same_answer_at_the_same_position():
    calls = [("ask_small", '{"question": "x"}')] * 2
    once, second = call_in_episode(toolset(), *calls), call_in_episode(toolset(), *calls)
    assert [answer.text for answer in once] == [answer.text for answer in second]
    assert once[0].text != once[1].text  # a second call is another sample


def test_prices_of_several_models_add_up():
    paid = toolset(functools.partial(Budget, total=100.0, prices={"ask_large": 2.0}))
    assert call_in_episode(paid, ("ask_large", '{"question": "x"}'))[0].record.cost == 18.0


def test_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(RecipeError, match='no model named "smal"; did you mean "small"'):
        Models(models=MODELS, include=["smal"])
    with pytest.raises(RecipeError, match="the recipe has no models"):
        Models()
