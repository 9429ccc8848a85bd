"""Tiered rewards: components that count only with success in a higher tier."""

from dataclasses import replace

import pytest
import torch

from support.rewards import episode, score, task, turn
from support.small import SMALL
from whetstone.algorithms.shaping.gated import gated_sum
from whetstone.assembly import assemble
from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe
from whetstone.rewards import provided_columns
from whetstone.rewards.gated.milestones import Milestones, potential_differences
from whetstone.trajectory import EndReason

TASK = task("?", answer="Rome Paris")


def both(answer, *, outcome="ok", back=("found", "4")):
    return episode(turn("", ("search", {}), back=back[:1]), turn("", ("python", {}, outcome), back=back[1:]), answer)


def test_tool_star():
    tools = {"tools": ["search", "python"]}
    assert score("tool_star", both("Rome Paris Oslo"), TASK, **tools).value == pytest.approx(0.8 + 0.1)  # F1 .8
    assert score("tool_star", both("Oslo"), TASK, **tools).value == 0
    assert score("tool_star", both("Rome Paris"), TASK).value == 1
    assert score("tool_star", both("Rome Paris", outcome="tool_error"), TASK, **tools).value == 1
    assert score("tool_star", both("Rome Paris", back=("found", "")), TASK, **tools).value == 1
    assert score("tool_star", both("Rome Paris", back=("found", "")), TASK, presence=True, **tools).value == 1.1
    broken = episode(turn("<x>", malformed=["<x>"]), "Rome Paris")
    assert score("tool_star", broken, TASK, **tools).value == -1


def test_signed():
    assert [score("plus_minus_one", episode(say), TASK).value for say in ("rome paris", "Oslo")] == [1, -1]


def gated(*, ran, right, at_least=1.0):
    one = episode(*[turn("", ("tool", {})) for _ in range(ran)], "Rome Paris" if right else "Oslo")
    terms = {
        "goal": "exact_match",
        "ran": {"name": "executed_calls", "weight": 0.1, "gate": "goal", "at_least": at_least},
    }
    return score("composed", one, TASK, terms=terms)


def test_gated_accumulation_as_a_composition():
    assert gated(ran=3, right=False).value == 0
    assert gated(ran=3, right=True).value == pytest.approx(1.3)
    tiers = torch.tensor([[0.0, 1.0], [0.3, 0.3]])
    assert gated_sum(tiers, [0.5], [1.0]).tolist() == pytest.approx([0, 1.3])


def test_milestones_count_once_and_in_order():
    problem = task(
        "?",
        answer="Rome",
        milestones=[{"tool": "open", "arguments": {"id": 1}}, {"tool": "read", "says": "secret"}, {"says": "done"}],
    )
    one = episode(
        turn("", ("read", {}), back=["secret"]),  # too early
        turn("", ("open", {"id": 1, "as": "me"})),
        turn("", ("open", {"id": 1})),  # again
        turn("", ("read", {}), back=["the secret"]),
        "Rome",
    )
    result = score("milestones", one, problem)
    assert result.turns == pytest.approx((0, 1 / 3, 0, 1 / 3, 0))
    assert result.signals["progress"] == pytest.approx((0, 0, 1 / 3, 1 / 3, 2 / 3))
    assert (result.value, result.parts["milestones"]) == (1, pytest.approx(2 / 3))
    failed = episode(turn("", ("open", {"id": 1}, "tool_error")), "Rome")
    assert score("milestones", failed, problem).turns == (0, 0)
    assert "progress" in provided_columns(Milestones())


ANY_ORDER = [{"state": "sorted"}, {"tool": "open"}, {"says": "ready"}]


def test_milestones_in_any_order_count_when_they_are_reached():
    steps = [turn("", ("read", {})), turn("", ("open", {}), back=["ready"]), "Rome"]
    one = episode(*steps, final={"milestone_turns": {"sorted": 1}})
    problem = task("?", answer="Rome", milestones=ANY_ORDER)
    assert score("milestones", one, problem, in_order=False).turns == pytest.approx((1 / 3, 2 / 3, 0))
    later = replace(one, final={"milestone_turns": {"sorted": 3}})
    assert score("milestones", later, problem, in_order=False).turns == pytest.approx((0, 2 / 3, 1 / 3))
    assert score("milestones", later, problem).turns == pytest.approx((0, 0, 1 / 3))
    reset = score("milestones", later, problem, in_order=False, reset_at_end=True)
    assert reset.turns == pytest.approx((0, 2 / 3, -2 / 3))
    assert reset.parts["milestones"] == 1


def test_task_without_milestones_pays_the_outcome_only():
    """Held-out tasks of built-in sources have no milestones, so evaluations do not pay for progress."""
    one = episode(turn("", ("open", {}), back=["ready"]), "?")
    paid = score("milestones", one, task("?", answer="Rome", milestones=ANY_ORDER), weight=0, partial_credit=0.9,
                 in_order=False)  # fmt: skip
    assert paid.value == pytest.approx(0.6)
    unpaid = score("milestones", one, task("?", answer="Rome"), partial_credit=0.9, weight=0)
    assert (unpaid.value, sum(unpaid.turns)) == (0, 0)


@pytest.mark.parametrize("name", ["support", "web_shop"])
def test_recipe_without_milestones_is_refused_with_the_option(name):
    overrides = [f"tasks={{source: {name}}}", f"environment={{name: {name}}}", "reward=milestones"]
    with pytest.raises(RecipeError, match=r"has no private 'milestones'; .*set tasks.milestones: true"):
        assemble(load_recipe("demo", [*SMALL, "ablations=null", *overrides])).check()


def test_potential_differences_add_up_to_the_final_value():
    assert sum(potential_differences([0, 0.2, 0.5, 1.0])) == pytest.approx(1)
    assert potential_differences([0, 0.5], 0.9) == pytest.approx([0.45])


def test_correct_wrong_and_missing_answers_differ_and_format_is_rewarded_per_turn():
    unreadable = turn("", malformed=["{"])
    fine = turn("", ("search", {}))
    right = score("outcome_and_format", episode(fine, unreadable, "7"), task(answer=7))
    assert (right.value, right.turns, right.success) == (1.0, (0.1, -0.1, 0.1), True)
    assert score("outcome_and_format", episode(fine, "8"), task(answer=7)).value == -1.0
    cut = score("outcome_and_format", episode(fine, unreadable, ended=EndReason.MAX_TURNS), task(answer=7), form=0.2)
    assert (cut.value, cut.parts["answered"], cut.success) == (0.0, 0.0, False)
    assert cut.turns == (0.2, -0.2)
