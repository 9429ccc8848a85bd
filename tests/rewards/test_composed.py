"""A sum of terms: weights, conditions, and the parts of a score."""

import json
import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.rewards import episode, group, score, task, turn
from whetstone.errors import RecipeError
from whetstone.rewards import REWARDS, make_reward, provided_columns
from whetstone.rewards.composed import Composed, oldest_version
from whetstone.rewards.learned_weights import LearnedWeights
from whetstone.rewards.protocol import required_private_keys
from whetstone.rewards.term import Fade, Term
from whetstone.rollout.protocol import Stateful, StepOutcome
from whetstone.trajectory import Group, Score

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


def test_weight_outside_of_a_term_is_refused_with_its_place():
    """`reward.right_price.weight=2` of a recipe sets a mapping as an option of the reward."""
    for options in ({"right": {"weight": 2}}, {"weight": 2}):
        with pytest.raises(RecipeError) as refused:
            make_reward({"name": "support.small:parity", **options}, REWARDS)
        assert ": no such option; parity has no options; a weight is a key of a term: " in str(refused.value)
        assert '{name: composed, terms: {NAME: {name: "support.small:parity", weight: …}}}' in str(refused.value)


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


# ------------------------------------------------------------ learned weights, and weights of tasks


def learned(**more):
    """Return a reward whose term `bonus` opposes the outcome and whose penalty of length goes with it."""

    async def outcome(trajectory, task):
        return Score(float(trajectory.final_text == "1"), success=trajectory.final_text == "1")

    async def wrong(trajectory, task):
        return Score(float(trajectory.final_text != "1"))

    terms = {
        "outcome": Term(reward=outcome),
        "bonus": Term(reward=wrong, weight=0.5, learned=True),
        "penalty": Term(reward=wrong, weight=-0.2, learned=True),
    }
    return Composed(terms=terms, primary="outcome", **more)


def observed(reward, *texts):
    """Score a group of answers and let the reward observe it; return the scores."""
    scored = [replace(episode(text), score=score(reward, episode(text), TASK)) for text in texts]
    reward.observe(StepOutcome(1, (Group(TASK, tuple(scored)),), {}, Random(0)))
    return [each.score for each in scored]


def test_term_that_opposes_the_outcome_is_switched_off():
    reward = learned(prior=1.0)
    assert isinstance(reward, Stateful)
    assert [each.value for each in observed(reward, "1", "1", "0", "0")] == pytest.approx([1.0, 1.0, 0.3, 0.3])
    result = score(reward, episode("0"), TASK)
    # the penalty explains the outcome, β = 1; of the bonus remains the prior: (4 · (1 − 1) + 1) / (4 + 1)
    assert result.parts["penalty.factor"] == pytest.approx(1.0)
    assert result.parts["bonus.factor"] == pytest.approx(0.2)
    assert result.value == pytest.approx(0.2 * 0.5 - 0.2)
    alone = LearnedWeights(["bonus"], prior=1.0, decay=1.0)
    alone.observe_groups([[(0.0, 1.0), (0.0, 1.0), (1.0, 0.0), (1.0, 0.0)]])
    assert alone.factors == {"bonus": 0.0}  # (4 · −1 + 1) / (4 + 1) is below 0


def test_groups_with_equal_outcomes_are_no_evidence():
    reward = learned()
    observed(reward, "0", "0", "0")
    assert score(reward, episode("0"), TASK).value == pytest.approx(0.3)
    assert reward.learned_weights.factors == {"bonus": 1.0, "penalty": 1.0}


def test_recorded_episode_keeps_the_factor_it_was_scored_with():
    reward = learned(prior=1.0)
    before = score(reward, episode("0"), TASK)
    observed(reward, "1", "0")
    assert score(reward, replace(episode("0"), score=before), TASK).value == before.value
    assert score(reward, episode("0"), TASK).value != before.value


def test_learned_state_is_restored_and_shared_by_copies():
    reward, other = learned(), learned()
    observed(reward, "1", "0", "0")
    other.load_state(json.loads(json.dumps(reward.state())))
    for each in (reward, other):
        observed(each, "1", "1", "0")
    assert other.state() == reward.state()
    copied = reward.with_terms(reward.terms)
    observed(copied, "1", "0")
    assert copied.state() == reward.state() != other.state()


@given(
    st.lists(
        st.lists(st.tuples(*[st.floats(-3, 3)] * 3), min_size=2, max_size=5), min_size=1, max_size=4
    ),
    st.floats(0.5, 30),
)  # fmt: skip
def test_factors_minimize_the_penalized_regression(groups, prior):
    weights = LearnedWeights(["a", "b"], prior=prior, decay=1.0)
    weights.observe_groups(groups)
    rows = []
    for each in groups:
        if len({row[-1] for row in each}) > 1:
            rows += [
                [x - np.mean(column) for x, column in zip(row, zip(*each, strict=True), strict=True)] for row in each
            ]
    data = np.array(rows or [[0.0, 0.0, 0.0]])
    norms = np.sqrt((data**2).sum(0))
    scaled = np.divide(data, norms, out=np.zeros_like(data), where=norms > 1e-5) * math.sqrt(len(data))
    if any(0 < norm < 1e-4 for norm in norms):
        return  # columns whose variance is rounding noise

    def objective(factors):
        return ((scaled[:, 2] - scaled[:, :2] @ factors) ** 2).sum() + prior * ((factors - 1) ** 2).sum()

    reached = objective(np.array([weights.factors["a"], weights.factors["b"]]))
    grid = np.linspace(0, 1, 21)
    assert reached <= min(objective(np.array([a, b])) for a in grid for b in grid) + 1e-6 * (1 + len(data))


def test_task_weighs_a_term():
    reward = Composed(terms={"a": Term(reward=says(2.0)), "b": Term(reward=says(3.0), weight=0.5, task_weight="late")})
    result = score(reward, episode("x"), task("?", late=4))
    assert (result.value, result.parts["b.paid"]) == (2 + 0.5 * 4 * 3, 6.0)
    assert required_private_keys(reward) == {"late"}
    for value in ("much", None, True, math.inf):
        with pytest.raises(
            ValueError, match=r"terms\.b\.task_weight: late of task t is .*; a finite number is required"
        ):
            score(reward, episode("x"), task("?", late=value))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"terms": {"a": {"name": "exact_match", "learned": True}}}, "primary: required by terms with `learned: true`"),
        ({"terms": {"a": "exact_match"}, "primary": "a"}, "has no effect without them"),
        ({"terms": {"a": {"name": "exact_match", "learned": True}}, "primary": "b"}, 'primary: no term named "b"'),
        ({"terms": {"a": {"name": "exact_match", "learned": True}}, "primary": "a"}, "the primary term is not learned"),
        (
            {"terms": {"a": "exact_match", "b": {"name": "few_calls", "learned": True}}, "primary": "a", "prior": 0.0},
            "prior must be above 0",
        ),
    ],
)
def test_mistakes_of_learned_weights_are_one_line(options, message):
    with pytest.raises((RecipeError, ValueError), match=message):
        make_reward({"name": "composed", **options}, REWARDS)
