"""Rewards with costs: worked numbers, and correct answers never score less than wrong ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.rewards import episode, group, score, task, turn
from whetstone.errors import RecipeError
from whetstone.rewards.efficiency.user_preferences import preference_scores

TASK = task("?", answer="Rome")


def calling(count, answer="Rome", name="search", **more):
    return episode(*[turn("", (name, {"n": k}), **more) for k in range(count)], answer)


def test_ikea():
    assert [score("ikea", calling(k), TASK).value for k in range(5)] == pytest.approx([1.6, 1.4, 1.2, 1.0, 1.0])
    assert score("ikea", calling(1, "Oslo"), TASK).value == 0.05
    assert score("ikea", calling(0, "Oslo"), TASK).value == 0
    broken = episode(turn("(search", malformed=["(search"]), "Rome")
    assert (score("ikea", broken, TASK).value, score("ikea", broken, TASK).success) == (-1, True)
    # retrieved text does not count as the format of the model
    assert score("ikea", episode(turn("", ("search", {}), back=["(answer</search>"]), "Rome"), TASK).value == 1.4


def test_cost_aware():
    costly = calling(2, tokens=10, cost=0.1)
    assert score("cost_aware", costly, TASK, budget=1.0).value == pytest.approx(1 - 0.5 * 0.2)
    prices = {"search": 0.2}
    result = score("cost_aware", costly, TASK, budget=1.0, token_price=0.01, call_prices=prices)
    assert (result.value, result.parts["cost"]) == (pytest.approx(0.6), pytest.approx(0.8))
    assert score("cost_aware", calling(9, cost=1.0), TASK, budget=1.0).value == 0.5
    assert score("cost_aware", calling(9, "Oslo", cost=1.0), TASK, budget=1.0).value == 0
    with pytest.raises(RecipeError, match="weight: input should be less than 1"):
        score("cost_aware", costly, TASK, budget=1.0, weight=1.0)


def test_self_aware():
    known, unknown = (task("?", answer="Rome", pass_rate_without_tools=rate) for rate in (0.9, 0.1))
    assert score("self_aware", calling(1), known).value == 0.5
    assert score("self_aware", calling(0), known).value == 1
    assert score("self_aware", calling(1), unknown).value == 1
    assert score("self_aware", calling(0, "Oslo"), unknown).parts["underuse"] == 1


def test_preferences():
    columns = np.array([[3, 1, 1, -0.02, -10], [1, 0, 1, -0.01, -4], [0, 2, 0, -0.05, -30]])
    assert preference_scores(columns, [0, 0, 1, 0.5, 0.5])[:2] == pytest.approx([1.7596, 2.0], abs=1e-4)
    assert preference_scores(np.ones((3, 2)), [1, 1]) == pytest.approx([0, 0, 0])
    assert preference_scores(np.zeros((0, 2)), [1, 1]).shape == (0,)


def test_preferences_of_a_group():
    cheap, dear, wrong = calling(1, cost=1), calling(3, cost=1), calling(0, "Oslo")
    result = group("user_preferences", [cheap, dear, wrong], TASK, prefer={"outcome": 1, "cost": 0.5, "search": -0.2})
    assert result[0].value > result[1].value > result[2].value == 0
    as_published = group("user_preferences", [cheap, dear, wrong], TASK, prefer={"search": -1}, positive=False)
    assert as_published[1].value == -1  # below a wrong answer, hence the default of `positive`
    own = task("?", answer="Rome", preferences={"search": 5})
    assert group("user_preferences", [cheap, dear], own, prefer={"outcome": 1})[1].value == 6


def test_fewest_turns():
    plain, restless = episode("Rome"), episode(turn("Oslo. Wait, alternatively"), "Rome")
    assert score("fewest_turns", plain, TASK).value == pytest.approx(1.4)
    assert score("fewest_turns", restless, TASK).value == pytest.approx(1 + 0.1 + 0.15)
    assert score("fewest_turns", episode("Oslo"), TASK).value == 0
    assert score("fewest_turns", plain, TASK, brevity=0.2).value == pytest.approx(1.6)


@given(
    st.integers(0, 9), st.integers(0, 9), st.sampled_from(["ikea", "otc", "cost_aware", "self_aware", "fewest_turns"])
)
def test_correct_answer_scores_more_than_a_wrong_one_at_any_cost(right, wrong, name):
    known = task("?", answer="Rome", pass_rate_without_tools=0.9)
    options = {"budget": 1.0} if name == "cost_aware" else {"outcome": "exact_match"} if name == "otc" else {}
    a, b = (score(name, calling(k, say, cost=1), known, **options) for k, say in ((right, "Rome"), (wrong, "Oslo")))
    assert a.value > b.value
    assert (a.success, b.success) == (True, False)
