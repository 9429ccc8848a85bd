"""Frozen models: runs, folders, addresses and functions answer and are never trained; invalid entries are refused."""

import asyncio

import pytest

from support.endpoint import served
from support.small import SMALL
from whetstone.assembly import assemble
from whetstone.assembly.environment import build_environment
from whetstone.assembly.frozen_models import frozen_models
from whetstone.chat import user
from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe
from whetstone.rollout import GroupPlan, ModelActor
from whetstone.trajectory import Author, RemovalScope

CLERK = 'def clerk(said, tools, seed):\n    return f"{said[-1].text}, {seed}"\n'


def test_function_answers(small_demo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clerks_here.py").write_text(CLERK)
    models = frozen_models(small_demo("models={clerk: {function: 'clerks_here:clerk', price: 2, skill: all}}"))
    assert asyncio.run(models["clerk"].answer([user("who")], seed=4)).text == "who, 4"
    assert (models["clerk"].price, models["clerk"].replayable) == (2.0, True)


def test_address_is_requested_with_the_name_of_its_model(small_demo):
    with served(lambda number, body: "hello") as server:
        models = frozen_models(small_demo(f"models={{far: {{url: '{server.url}', model: m, max_new_tokens: 9}}}}"))
        answer = asyncio.run(models["far"].answer([user("x")], seed=5))
    assert answer.text == "hello"
    assert server.bodies[0] == {
        "model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": 0.0, "max_tokens": 9, "seed": 5,
    }  # fmt: skip
    assert not models["far"].replayable


@pytest.mark.slow
def test_folder_answers_and_is_not_trained(small_demo, speaking_policy):
    model = frozen_models(small_demo(f"models={{own: {{path: '{speaking_policy}', max_new_tokens: 8}}}}"))["own"]

    async def main():
        return [await model.answer([user("2 + 2")], seed=1) for _ in range(2)]

    first, repeated = asyncio.run(main())
    assert first == repeated == asyncio.run(model.answer([user("2 + 2")], seed=1))  # in another loop, too


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{a: {}}", "one of path, url and function, got none"),
        ("{a: {path: x, function: 'b:c'}}", "got path and function"),
        ("{a: {function: 'b:c', model: m}}", "model and api_key_env require url"),
        ("{a: {path: /no/such/folder}}", "models.a.*no such model folder"),
        ("{a: {function: 'support.endpoint:nobody'}}", "models.a.*has no nobody"),
    ],
)
def test_invalid_models_are_refused(small_demo, written, message):
    with pytest.raises(RecipeError, match=message):
        build_environment(small_demo(f"models={written}"))


def test_unused_models_are_refused(small_demo):
    with pytest.raises(RecipeError, match=r"models.*has no effect"):
        build_environment(small_demo("models={a: {function: 'support.endpoint:served'}}"))


def test_function_can_take_a_seat(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sellers_here.py").write_text('def seller(said, tools, seed):\n    return "offer 15"\n')
    loaded = load_recipe(
        "bargaining",
        [
            *SMALL,
            "models={clerk: {function: 'sellers_here:seller'}}",
            "rollout.strategy.frozen={seller: clerk}",
            "rollout.group_size=2",
        ],
    )
    parts = assemble(loaded)
    assert isinstance(parts.frozen["seller"], ModelActor)

    async def main():
        engine = parts.build_engine()
        try:
            collector = parts.build_collector(parts.policy_actor(engine, temperature=1.0))
            return await collector.group(GroupPlan(parts.source.task(0), seed=1), parts.strategy)
        finally:
            await engine.close()

    group = asyncio.run(main())
    sold = next(each for each in group.trajectories if each.role == "seller")
    assert sold.turns[0].message.text == "offer 15"
    assert set(sold.turns[0].action.authors) == {Author.OTHER_AGENT}  # none of its tokens are sampled by the policy
    assert sold.removal is RemovalScope.BEFORE_BASELINE
