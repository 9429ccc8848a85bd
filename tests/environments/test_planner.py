"""The policy plans, or advises; frozen models do the rest, at their price, and nothing they say is the policy's."""

import asyncio
import functools

import pytest

from whetstone.chat import ToolCall, assistant
from whetstone.environments.advised import Advised
from whetstone.environments.game_environment import played
from whetstone.environments.native.negotiation import Negotiation
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


def execute(said, tools, seed):
    HEARD.append(said[-1].text)
    words = said[-1].text.split()
    assert [tool.name for tool in tools] == ["double"]
    return assistant("", ToolCall("double", f'{{"number": {words[-1]}}}')) if words[-2] == "double" else "cannot"


def verify(said, tools, seed):
    return "Stop." if "-> 12" in said[-1].text else "go on"


MODELS = {
    "executor": FrozenModel("executor", execute, 1.0),
    "verifier": FrozenModel("verifier", verify, 0.5),
    "generator": FrozenModel("generator", lambda said, tools, seed: said[-1].text.rpartition(" -> ")[2], 2.0),
}
ALL = {"models": MODELS, "executor": "executor", "generator": "generator", "tools": [double]}
TASK = Task("t", "four times 3")


def planned(environment, *plans):
    """What came of each plan, and the verdict."""

    async def main():
        opening = await environment.reset(TASK, seed=1)
        assert opening.messages[-1].text == TASK.prompt
        came = [await environment.step(assistant(plan)) for plan in plans]
        said = environment.verdict()
        await environment.close()
        return came, said

    return asyncio.run(main())


def test_plans_are_carried_out_until_the_verifier_says_stop():
    HEARD.clear()
    (first, second), verdict = planned(Planner(**ALL, verifier="verifier"), "double 3", "double 6")
    assert HEARD == ["four times 3\nplan: double 3", "four times 3\nplan: double 6"]
    assert first.observation.messages[0].text == "6"
    assert first.ended is None
    assert second.terminated
    assert verdict == {"plans": 2, "answer": "12"}


def test_everybody_who_is_asked_is_paid():
    (_, last), _ = planned(Planner(**ALL, verifier="verifier"), "double 3", "double 6")
    assert [(call.name, call.cost) for call in last.calls] == [
        ("executor", 1.0), ("double", 0.0), ("verifier", 0.5), ("generator", 2.0),
    ]  # fmt: skip


def test_without_a_verifier_the_planner_says_stop():
    came, verdict = planned(Planner(**ALL), "double 3", "stop here")
    assert came[1].terminated
    assert verdict == {"plans": 1, "answer": "6"}


def test_behind_the_last_plan_it_is_enough():
    came, verdict = planned(Planner(**ALL, steps=1), "double 3")
    assert came[0].terminated
    assert verdict["answer"] == "6"


def test_what_the_executor_cannot_do_is_read_and_nothing_is_no_plan():
    came, verdict = planned(Planner(**ALL), "", "think")
    assert [step.observation.messages[0].text for step in came] == ["Say in words what is to be done next.", "cannot"]
    assert verdict == {"plans": 1}


def test_a_model_that_is_not_there_is_refused():
    with pytest.raises(RecipeError, match='no model "genrator"; did you mean "generator"'):
        Planner(**{**ALL, "generator": "genrator"})


DEAL = Task("t", "", {"worth": 50, "lowest": 20, "asks": [60, 40, 25]})


def haggle(said, tools, seed):
    low = said[-1].text == "advice: wait"
    return "offer 1" if low else "accept"


def advised(*advice, **options):
    """What came of each piece of advice in a negotiation, and its verdict."""
    agent = FrozenModel("agent", haggle, 3.0)
    world = functools.partial(played(Negotiation), actions="text")
    environment = Advised(models={"agent": agent}, agent="agent", world=world, **options)

    async def main():
        await environment.reset(DEAL, seed=1)
        came = [await environment.step(assistant(each)) for each in advice]
        said = await environment.verdict()
        await environment.close()
        return came, said

    return asyncio.run(main())


def test_the_agent_acts_as_it_is_advised():
    came, verdict = advised("wait", "wait", "take it")  # 60, then 40, then 25: the gain is (50 - 25) / (50 - 20)
    assert came[-1].terminated
    assert verdict["success"]
    assert verdict["score"] == pytest.approx(25 / 30)
    assert [call.cost for call in came[0].calls] == [3.0]


def test_without_advice_the_agent_does_as_it_would():
    (came,), verdict = advised("wait", advice=False)
    assert came.terminated  # it accepts 60 for what is worth 50 to it
    assert not verdict["success"]


def test_one_piece_of_advice_may_last_for_several_actions():
    (first, second), verdict = advised("wait", "take it", actions_per_advice=2)
    assert len(first.calls) == 2
    assert second.terminated
    assert verdict["score"] == pytest.approx(25 / 30)
