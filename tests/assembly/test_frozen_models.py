"""A model that is asked and never trained is a run, a folder, an address or a function; what cannot be is refused."""

import asyncio

import pytest

from tests_endpoint import served
from tests_small import SMALL
from whetstone.assembly import assemble
from whetstone.assembly.environment import environment_of
from whetstone.assembly.frozen_models import frozen_models
from whetstone.chat import user
from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe
from whetstone.rollout import ModelActor, Plan
from whetstone.trajectory import Author, RemovalScope

CLERK = 'def clerk(said, tools, seed):\n    return f"{said[-1].text}, {seed}"\n'


def test_a_function_speaks(small_demo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clerks_here.py").write_text(CLERK)
    models = frozen_models(small_demo("models={clerk: {function: 'clerks_here:clerk', price: 2, skill: all}}"))
    assert asyncio.run(models["clerk"].answer([user("who")], seed=4)).text == "who, 4"
    assert (models["clerk"].price, models["clerk"].replayable) == (2.0, True)


def test_an_address_is_asked_by_its_models_name(small_demo):
    with served(lambda number, body: "hello") as server:
        models = frozen_models(small_demo(f"models={{far: {{url: '{server.url}', model: m, max_new_tokens: 9}}}}"))
        said = asyncio.run(models["far"].answer([user("x")], seed=5))
    assert said.text == "hello"
    assert server.bodies[0] == {
        "model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": 0.0, "max_tokens": 9, "seed": 5,
    }  # fmt: skip
    assert not models["far"].replayable


@pytest.mark.slow
def test_a_folder_speaks_and_is_not_trained(small_demo, speaking_policy):
    model = frozen_models(small_demo(f"models={{own: {{path: '{speaking_policy}', max_new_tokens: 8}}}}"))["own"]

    async def main():
        return [await model.answer([user("2 + 2")], seed=1) for _ in range(2)]

    once, again = asyncio.run(main())
    assert once == again == asyncio.run(model.answer([user("2 + 2")], seed=1))  # in another loop, too


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{a: {}}", "one of path, url and function, got none"),
        ("{a: {path: x, function: 'b:c'}}", "got path and function"),
        ("{a: {function: 'b:c', model: m}}", "model and api_key_env require url"),
        ("{a: {path: /no/such/folder}}", "models.a.*no such model folder"),
        ("{a: {function: 'tests_endpoint:nobody'}}", "models.a.*has no nobody"),
    ],
)
def test_what_cannot_be_is_refused(small_demo, written, said):
    with pytest.raises(RecipeError, match=said):
        environment_of(small_demo(f"models={written}"))


def test_models_that_nobody_asks_are_refused(small_demo):
    with pytest.raises(RecipeError, match=r"models.*has no effect"):
        environment_of(small_demo("models={a: {function: 'tests_endpoint:served'}}"))


def test_a_function_may_take_a_seat(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sellers_here.py").write_text('def seller(said, tools, seed):\n    return "offer 15"\n')
    made = load_recipe(
        "bargaining",
        [
            *SMALL,
            "models={clerk: {function: 'sellers_here:seller'}}",
            "rollout.strategy.frozen={seller: clerk}",
            "rollout.group_size=2",
        ],
    )
    parts = assemble(made)
    assert isinstance(parts.frozen["seller"], ModelActor)

    async def main():
        engine = parts.engine()
        try:
            collector = parts.collector(parts.policy_actor(engine, temperature=1.0))
            return await collector.group(Plan(parts.source.task(0), seed=1), parts.strategy)
        finally:
            await engine.close()

    group = asyncio.run(main())
    sold = next(each for each in group.trajectories if each.role == "seller")
    assert sold.turns[0].message.text == "offer 15"
    assert set(sold.turns[0].action.authors) == {Author.OTHER_AGENT}  # nothing in it is the policy's
    assert sold.removal is RemovalScope.BEFORE_BASELINE
