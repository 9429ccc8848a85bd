"""Planner and advisor environments: frozen models execute plans at their price, and their tokens are not trained."""

import asyncio
import functools

import pytest

from whetstone.chat import ToolCall, assistant
from whetstone.environments.advisor import Advised
from whetstone.environments.built_in.negotiation import Negotiation
from whetstone.environments.game_environment import as_environment
from whetstone.environments.planner import Planner
from whetstone.errors import RecipeError
from whetstone.tools import FrozenModel
from whetstone.trajectory import Task

HEARD = []


def double(number: int) -> int:
    """Twice a number.

    Args:
        number: Any.
    """
    return 2 * number


def execute(messages, tools, seed):
    HEARD.append(messages[-1].text)
    words = messages[-1].text.split()
    assert [tool.name for tool in tools] == ["double"]
    return assistant("", ToolCall("double", f'{{"number": {words[-1]}}}')) if words[-2] == "double" else "cannot"


def verify(messages, tools, seed):
    return "Stop." if "-> 12" in messages[-1].text else "go on"


MODELS = {
    "executor": FrozenModel("executor", execute, 1.0),
    "verifier": FrozenModel("verifier", verify, 0.5),
    "generator": FrozenModel("generator", lambda messages, tools, seed: messages[-1].text.rpartition(" -> ")[2], 2.0),
}
ALL = {"models": MODELS, "executor": "executor", "generator": "generator", "tools": [double]}
TASK = Task("t", "four times 3")


def run_plans(environment, *plans):
    """Return the result of each plan, and the verdict."""

    async def main():
        opening = await environment.reset(TASK, seed=1)
        assert opening.messages[-1].text == TASK.prompt
        came = [await environment.step(assistant(plan)) for plan in plans]
        verdict = environment.verdict()
        await environment.close()
        return came, verdict

    return asyncio.run(main())


def test_plans_are_executed_until_the_verifier_stops():
    HEARD.clear()
    (first, second), verdict = run_plans(Planner(**ALL, verifier="verifier"), "double 3", "double 6")
    assert HEARD == ["four times 3\nplan: double 3", "four times 3\nplan: double 6"]
    assert first.observation.messages[0].text == "6"
    assert first.ended is None
    assert second.terminated
    assert verdict == {"plans": 2, "answer": "12"}


def test_every_requested_model_has_its_cost():
    (_, last), _ = run_plans(Planner(**ALL, verifier="verifier"), "double 3", "double 6")
    assert [(call.name, call.cost) for call in last.calls] == [
        ("executor", 1.0), ("double", 0.0), ("verifier", 0.5), ("generator", 2.0),
    ]  # fmt: skip


def test_planner_stops_without_a_verifier():
    came, verdict = run_plans(Planner(**ALL), "double 3", "stop here")
    assert came[1].terminated
    assert verdict == {"plans": 1, "answer": "6"}


def test_last_plan_ends_the_episode():
    came, verdict = run_plans(Planner(**ALL, steps=1), "double 3")
    assert came[0].terminated
    assert verdict["answer"] == "6"


def test_failures_of_the_executor_are_observed_and_empty_plans_are_refused():
    came, verdict = run_plans(Planner(**ALL), "", "think")
    assert [step.observation.messages[0].text for step in came] == ["Say in words what is to be done next.", "cannot"]
    assert verdict == {"plans": 1}


def test_unknown_model_is_refused():
    with pytest.raises(RecipeError, match='no model named "genrator"; did you mean "generator"'):
        Planner(**{**ALL, "generator": "genrator"})


DEAL = Task("t", "", {"worth": 50, "lowest": 20, "asks": [60, 40, 25]})


def haggle(messages, tools, seed):
    low = messages[-1].text == "advice: wait"
    return "offer 1" if low else "accept"


def run_advice(*advice, **options):
    """Return the result of each piece of advice in a negotiation, and its verdict."""
    agent = FrozenModel("agent", haggle, 3.0)
    world = functools.partial(as_environment(Negotiation), actions="text")
    environment = Advised(models={"agent": agent}, agent="agent", world=world, **options)

    async def main():
        await environment.reset(DEAL, seed=1)
        came = [await environment.step(assistant(each)) for each in advice]
        verdict = await environment.verdict()
        await environment.close()
        return came, verdict

    return asyncio.run(main())


def test_agent_follows_the_advice():
    came, verdict = run_advice("wait", "wait", "take it")  # 60, then 40, then 25: the gain is (50 - 25) / (50 - 20)
    assert came[-1].terminated
    assert verdict["success"]
    assert verdict["score"] == pytest.approx(25 / 30)
    assert [call.cost for call in came[0].calls] == [3.0]


def test_agent_without_advice_acts_on_its_own():
    (came,), verdict = run_advice("wait", advice=False)
    assert came.terminated  # it accepts 60 for an item of value 50
    assert not verdict["success"]


def test_one_piece_of_advice_can_last_for_several_actions():
    (first, second), verdict = run_advice("wait", "take it", actions_per_advice=2)
    assert len(first.calls) == 2
    assert second.terminated
    assert verdict["score"] == pytest.approx(25 / 30)
