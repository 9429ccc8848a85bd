"""A signature says what an estimator needs and what its advantages are one of."""

import functools

from whetstone.algorithms import Bite, PerToken, PerTrajectory, PerTurn, bite_of, columns_of, level_of
from whetstone.algorithms.advantages import gigpo, group_relative, turn_gae
from whetstone.algorithms.levels import BeforeBaseline, Credit, Weight


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

    assert (bite_of(gone), bite_of(softer), bite_of(plain)) == (Bite.BEFORE_BASELINE, Bite.WEIGHT, Bite.LOSS_ONLY)


def test_where_a_filter_bites_is_said_in_words():
    assert [str(bite) for bite in Bite] == ["before_baseline", "loss_only", "weight"]
