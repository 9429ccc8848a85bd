"""A signature says what an estimator needs and what its advantages are one of."""

import functools

from whetstone.algorithms import PerToken, PerTrajectory, PerTurn, columns_of, level_of, removal_scope_of
from whetstone.algorithms.advantages import gigpo, group_relative, turn_gae
from whetstone.algorithms.levels import BeforeBaseline, Credit, Weight
from whetstone.trajectory import RemovalScope


def plain(rewards, group, *, weight=1.0):
    return rewards


def annotated(rewards: PerTrajectory, novelty: PerTurn, trajectory: PerTurn) -> PerToken:
    return novelty


def test_parameters_without_options_are_columns():
    assert columns_of(plain) == ("rewards", "group")
    assert columns_of(functools.partial(gigpo, discount=0.9))[:2] == ("rewards", "turn_rewards")


def test_annotations_say_per_what():
    assert level_of(annotated) == "token"
    assert level_of(annotated, "novelty") == "turn"
    assert level_of(functools.partial(turn_gae, trace=1.0)) == "turn"
    assert level_of(group_relative) == level_of(plain) == "trajectory"


def test_credit_may_have_no_targets():
    assert Credit(None).targets == {}


def test_a_filter_says_where_it_bites():
    def gone(rewards) -> BeforeBaseline:
        return rewards

    def softer(rewards) -> Weight:
        return rewards

    assert (removal_scope_of(gone), removal_scope_of(softer), removal_scope_of(plain)) == (
        RemovalScope.BEFORE_BASELINE,
        RemovalScope.WEIGHT,
        RemovalScope.LOSS_ONLY,
    )


def test_where_a_filter_bites_is_said_in_words():
    assert [str(bite) for bite in RemovalScope] == ["before_baseline", "loss_only", "weight"]
