"""A sum of terms: what each is worth, when it counts, and what is seen of it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests_rewards import episode, group, score, task, turn
from whetstone.errors import RecipeError
from whetstone.rewards import REWARDS, make_reward, provided_by
from whetstone.rewards.composed import Composed, version_of
from whetstone.rewards.term import Fade, Term
from whetstone.trajectory import Score

TASK = task("?", answer=7)


def says(value=0.0, success=None, **more):
    async def reward(trajectory, given):
        return Score(value, success=success, **more)

    return reward


def composed(trajectory=None, /, **terms):
    made = {name: term if isinstance(term, Term) else Term(reward=term) for name, term in terms.items()}
    return score(Composed(terms=made), trajectory or episode("7"), TASK)


def test_weights_products_gates_and_bounds_are_seen_apart():
    found = composed(
        a=Term(reward=says(2.0, True), weight=0.5),
        b=Term(reward=says(3.0), times="a"),
        c=Term(reward=says(9.0), gate=["a"], at_least=2.5, weight=10),
        d=Term(reward=says(9.0), high=1.0),
        e=Term(reward=says(-9.0), low=-0.5),
    )
    assert found.value == pytest.approx(1 + 6 + 0 + 1 - 0.5)
    assert found.parts == {"a": 2, "a.paid": 1, "b": 3, "b.paid": 6, "c": 9, "c.paid": 0, "d": 1, "e": -0.5}
    assert found.success is True


def test_success_is_of_the_term_that_can_tell_or_is_named():
    assert composed(a=says(1.0), b=says(0.0, False)).success is False
    terms = {"a": Term(reward=says(1.0, False)), "b": Term(reward=says(0.0, True))}
    assert score(Composed(terms=terms, success="b"), episode("7"), TASK).success is True


def test_tiers_count_only_behind_every_higher_one():
    terms = {"low": Term(reward=says(1.0), gate=["high", "middle"]), "middle": Term(reward=says(1.0), gate="high")}
    assert composed(high=says(0.0), **terms).value == 0
    assert composed(high=says(1.0), **terms).value == 3


def test_a_weight_fades_with_the_version_of_the_policy():
    term = Term(reward=says(1.0), weight=1.0, fade=Fade(to=0.0, start=10, over=20))
    assert [term.weight_at(version) for version in (0, 10, 20, 30, 99)] == [1, 1, 0.5, 0, 0]
    acted = episode(turn("x", tokens=2, version=22), turn("7", tokens=1, version=20))
    assert version_of(acted) == 20
    assert composed(acted, a=term).value == 0.5
    assert composed(episode("7"), a=term).value == 1
    with pytest.raises(ValueError, match="over is 1 or more"):
        Fade(to=0.0, over=0)


def test_a_weight_may_fall_by_half_a_cosine_from_where_reinforcement_begins():
    term = Term(reward=says(5.0), weight=0.1, fade=Fade(to=0.0, over=200, shape="cosine"))
    # 0.1 (1 + cos(π g / 200)) / 2 for each of five calls (SPEAR)
    assert [5 * term.weight_at(g) for g in (0, 50, 100, 200)] == pytest.approx([0.5, 0.426777, 0.25, 0])
    behind_a_warm_up = term.begun(440)
    assert [5 * behind_a_warm_up.weight_at(g) for g in (99, 440, 540)] == pytest.approx([0.5, 0.5, 0.25])
    assert replace(term, fade=Fade(to=0.0, over=2, start=1)).begun(440).fade.start == 1


def test_turns_are_weighted_and_bounded_too():
    one = episode(turn("x", ("t", {})), "7")
    found = composed(
        one, a=Term(reward=says(0.0, turns=(1.0, 3.0)), weight=2.0, high=2.0), b=says(1.0, turns=(0.0, 1.0))
    )
    assert found.turns == pytest.approx((1.0, 4.0))
    assert composed(one, a=Term(reward=says(turns=(1.0, 1.0)), gate="b"), b=says(0.0)).turns == (0, 0)


def test_one_term_that_cannot_tell_is_none_of_it():
    found = composed(a=says(1.0), judge=says(invalid="the judge is down"))
    assert found.invalid == "judge: the judge is down"


def test_a_term_that_compares_compares():
    reward = make_reward(
        {"name": "composed", "terms": {"otc": "otc", "more": {"name": "executed_calls", "weight": 0.0}}}, REWARDS
    )
    calls = [episode(*[turn("", ("t", {})) for _ in range(k)], "7") for k in (1, 2)]
    found = group(reward, calls, TASK)
    assert found[0].value == 1 > found[1].value
    assert "compared" not in vars(make_reward({"name": "composed", "terms": {"a": "exact_number"}}, REWARDS))


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"a": {"name": "exact_number", "gate": "b"}}, r'terms.a: there is no term "b"'),
        ({"a": {"name": "exact_number", "times": "a"}}, "cannot wait for itself"),
        ({"a": "retail"}, 'terms.a: reward "retail": renamed to "tau2"'),
        ({"a": "exact_numbr"}, r'terms.a: no reward named "exact_numbr"; did you mean "exact_number"'),
        ({"a": {"name": "exact_number", "wieght": 1}}, r'terms.a.wieght: no such option; did you mean "weight"'),
        ({"a": {"name": "exact_number", "weight": "much"}}, r"terms.a.weight: .*valid number"),
        ({"a": {"weight": 1}}, "a mapping with its name"),
        ({"a": {"name": "exact_number", "fade": {"to": 1}}}, r"terms.a.fade"),
        ([], "terms by name"),
        ({}, "terms by name"),
    ],
)
def test_what_cannot_be_meant(terms, said):
    with pytest.raises(RecipeError, match=said):
        make_reward({"name": "composed", "terms": terms}, REWARDS)


def test_it_says_what_its_terms_provide():
    reward = make_reward({"name": "composed", "terms": {"good": "matched_calls", "few": "few_calls"}}, REWARDS)
    assert {"good", "few", "process_rewards", "matched"} <= provided_by(reward)


@given(st.integers(0, 6), st.integers(0, 6))
def test_with_gates_a_right_answer_pays_more_than_a_wrong_one(right, wrong):
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

        async def __call__(self, trajectory, given):
            return Score(1.0)

        async def compared(self, trajectories, given):
            return [Score(1.0)] * self.count

    for terms in ({"a": Comparing(1)}, {"a": Comparing(2), "b": Comparing(1)}, {"a": Comparing(3)}):
        reward = Composed(terms={name: Term(reward=term) for name, term in terms.items()})
        with pytest.raises(ValueError, match=r"zip\(\) argument"):
            group(reward, [episode("7"), episode("8")], TASK)
    with pytest.raises(ValueError, match=r"zip\(\) argument"):
        composed(episode("7"), a=says(turns=(1.0, 2.0)))


def test_success_names_a_term_and_parts_are_named_by_theirs():
    with pytest.raises(RecipeError, match='success: there is no term "b"'):
        Composed(terms={"a": Term(reward=says())}, success="b")
    found = composed(a=says(2.0, parts={"a": 2.0, "inner": 0.5}))
    assert found.parts == {"a": 2.0, "a.inner": 0.5}
