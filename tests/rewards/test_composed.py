"""A sum of terms: weights, conditions, and the parts of a score."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.rewards import episode, group, score, task, turn
from whetstone.errors import RecipeError
from whetstone.rewards import REWARDS, make_reward, provided_columns
from whetstone.rewards.composed import Composed, oldest_version
from whetstone.rewards.term import Fade, Term
from whetstone.trajectory import Score

TASK = task("?", answer=7)


def says(value=0.0, success=None, **more):
    async def reward(trajectory, task):
        return Score(value, success=success, **more)

    return reward


def score_terms(trajectory=None, /, **terms):
    term_list = {name: term if isinstance(term, Term) else Term(reward=term) for name, term in terms.items()}
    return score(Composed(terms=term_list), trajectory or episode("7"), TASK)


def test_weights_products_gates_and_bounds_are_separate_parts():
    result = score_terms(
        a=Term(reward=says(2.0, True), weight=0.5),
        b=Term(reward=says(3.0), times="a"),
        c=Term(reward=says(9.0), gate=["a"], at_least=2.5, weight=10),
        d=Term(reward=says(9.0), high=1.0),
        e=Term(reward=says(-9.0), low=-0.5),
    )
    assert result.value == pytest.approx(1 + 6 + 0 + 1 - 0.5)
    assert result.parts == {"a": 2, "a.paid": 1, "b": 3, "b.paid": 6, "c": 9, "c.paid": 0, "d": 1, "e": -0.5}
    assert result.success is True


def test_success_is_that_of_the_deciding_or_named_term():
    assert score_terms(a=says(1.0), b=says(0.0, False)).success is False
    terms = {"a": Term(reward=says(1.0, False)), "b": Term(reward=says(0.0, True))}
    assert score(Composed(terms=terms, success="b"), episode("7"), TASK).success is True


def test_tier_counts_only_if_all_higher_ones_succeed():
    terms = {"low": Term(reward=says(1.0), gate=["high", "middle"]), "middle": Term(reward=says(1.0), gate="high")}
    assert score_terms(high=says(0.0), **terms).value == 0
    assert score_terms(high=says(1.0), **terms).value == 3


def test_weight_decays_with_the_policy_version():
    term = Term(reward=says(1.0), weight=1.0, fade=Fade(to=0.0, start=10, over=20))
    assert [term.weight_at(version) for version in (0, 10, 20, 30, 99)] == [1, 1, 0.5, 0, 0]
    acted = episode(turn("x", tokens=2, version=22), turn("7", tokens=1, version=20))
    assert oldest_version(acted) == 20
    assert score_terms(acted, a=term).value == 0.5
    assert score_terms(episode("7"), a=term).value == 1
    with pytest.raises(ValueError, match="over must be at least 1"):
        Fade(to=0.0, over=0)


def test_weight_can_follow_half_a_cosine_from_the_start_of_reinforcement():
    term = Term(reward=says(5.0), weight=0.1, fade=Fade(to=0.0, over=200, shape="cosine"))
    # 0.1 (1 + cos(π g / 200)) / 2 for each of five calls (SPEAR)
    assert [5 * term.weight_at(g) for g in (0, 50, 100, 200)] == pytest.approx([0.5, 0.426777, 0.25, 0])
    behind_a_warm_up = term.start_fade_at(440)
    assert [5 * behind_a_warm_up.weight_at(g) for g in (99, 440, 540)] == pytest.approx([0.5, 0.5, 0.25])
    assert replace(term, fade=Fade(to=0.0, over=2, start=1)).start_fade_at(440).fade.start == 1


def test_turn_rewards_are_weighted_and_bounded():
    one = episode(turn("x", ("t", {})), "7")
    result = score_terms(
        one, a=Term(reward=says(0.0, turns=(1.0, 3.0)), weight=2.0, high=2.0), b=says(1.0, turns=(0.0, 1.0))
    )
    assert result.turns == pytest.approx((1.0, 4.0))
    assert score_terms(one, a=Term(reward=says(turns=(1.0, 1.0)), gate="b"), b=says(0.0)).turns == (0, 0)


def test_unknown_term_makes_the_sum_unknown():
    result = score_terms(a=says(1.0), judge=says(invalid="the judge is down"))
    assert result.invalid == "judge: the judge is down"


def test_comparing_term_is_compared():
    reward = make_reward(
        {"name": "composed", "terms": {"otc": "otc", "more": {"name": "executed_calls", "weight": 0.0}}}, REWARDS
    )
    calls = [episode(*[turn("", ("t", {})) for _ in range(k)], "7") for k in (1, 2)]
    results = group(reward, calls, TASK)
    assert results[0].value == 1 > results[1].value
    assert "compared" not in vars(make_reward({"name": "composed", "terms": {"a": "exact_number"}}, REWARDS))


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"a": {"name": "exact_number", "gate": "b"}}, r'terms.a: no term named "b"'),
        ({"a": {"name": "exact_number", "times": "a"}}, "cannot refer to itself"),
        ({"a": "retail"}, 'terms.a: reward "retail": renamed to "tau2"'),
        ({"a": "exact_numbr"}, r'terms.a: no reward named "exact_numbr"; did you mean "exact_number"'),
        ({"a": {"name": "exact_number", "wieght": 1}}, r'terms.a.wieght: no such option; did you mean "weight"'),
        ({"a": {"name": "exact_number", "weight": "much"}}, r"terms.a.weight: .*valid number"),
        ({"a": {"weight": 1}}, "a mapping with its name"),
        ({"a": {"name": "exact_number", "fade": {"to": 1}}}, r"terms.a.fade"),
        ([], "must be a mapping by name"),
        ({}, "must be a mapping by name"),
    ],
)
def test_invalid_options_are_refused(terms, message):
    with pytest.raises(RecipeError, match=message):
        make_reward({"name": "composed", "terms": terms}, REWARDS)


def test_columns_are_those_of_the_terms():
    reward = make_reward({"name": "composed", "terms": {"good": "matched_calls", "few": "few_calls"}}, REWARDS)
    assert {"good", "few", "process_rewards", "matched"} <= provided_columns(reward)


@given(st.integers(0, 6), st.integers(0, 6))
def test_correct_answer_scores_more_with_gates(right, wrong):
    terms = {
        "correct": "exact_number",
        "ran": {"name": "executed_calls", "weight": 0.1, "gate": "correct", "high": 3},
        "few": {"name": "few_calls", "weight": 0.2, "times": "correct"},
    }
    a, b = (
        score("composed", episode(*[turn("", ("t", {})) for _ in range(k)], say), TASK, terms=terms)
        for k, say in ((right, "7"), (wrong, "8"))
    )
    assert a.value > b.value == 0


def test_scores_of_other_lengths_are_refused():
    class Comparing:
        def __init__(self, count):
            self.count = count

        async def __call__(self, trajectory, task):
            return Score(1.0)

        async def compared(self, trajectories, task):
            return [Score(1.0)] * self.count

    for terms in ({"a": Comparing(1)}, {"a": Comparing(2), "b": Comparing(1)}, {"a": Comparing(3)}):
        reward = Composed(terms={name: Term(reward=term) for name, term in terms.items()})
        with pytest.raises(ValueError, match=r"zip\(\) argument"):
            group(reward, [episode("7"), episode("8")], TASK)
    with pytest.raises(ValueError, match=r"zip\(\) argument"):
        score_terms(episode("7"), a=says(turns=(1.0, 2.0)))


def test_success_names_a_term_and_parts_have_its_name():
    with pytest.raises(RecipeError, match='success: no term named "b"'):
        Composed(terms={"a": Term(reward=says())}, success="b")
    result = score_terms(a=says(2.0, parts={"a": 2.0, "inner": 0.5}))
    assert result.parts == {"a": 2.0, "a.inner": 0.5}
