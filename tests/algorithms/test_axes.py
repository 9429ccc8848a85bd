"""Signatures of estimators define their columns and the level of their advantages."""

import functools

from whetstone.algorithms import (
    PerToken,
    PerTrajectory,
    PerTurn,
    annotated_level,
    annotated_removal_scope,
    column_names,
)
from whetstone.algorithms.advantages import gigpo, group_relative, turn_gae
from whetstone.algorithms.axes import BeforeBaseline, Credit, Weight
from whetstone.trajectory import RemovalScope


def plain(rewards, group, *, weight=1.0):
    return rewards


def annotated(rewards: PerTrajectory, novelty: PerTurn, trajectory: PerTurn) -> PerToken:
    return novelty


def test_parameters_without_options_are_columns():
    assert column_names(plain) == ("rewards", "group")
    assert column_names(functools.partial(gigpo, discount=0.9))[:2] == ("rewards", "turn_rewards")


def test_annotations_define_levels():
    assert annotated_level(annotated) == "token"
    assert annotated_level(annotated, "novelty") == "turn"
    assert annotated_level(functools.partial(turn_gae, trace=1.0)) == "turn"
    assert annotated_level(group_relative) == annotated_level(plain) == "trajectory"


def test_targets_of_credit_are_optional():
    assert Credit(None).targets == {}


def test_filters_define_their_removal_scope():
    def loss_filter(rewards) -> BeforeBaseline:
        return rewards

    def softer(rewards) -> Weight:
        return rewards

    assert (annotated_removal_scope(loss_filter), annotated_removal_scope(softer), annotated_removal_scope(plain)) == (
        RemovalScope.BEFORE_BASELINE,
        RemovalScope.WEIGHT,
        RemovalScope.LOSS_ONLY,
    )


def test_removal_scopes_are_printed_as_words():
    assert [str(bite) for bite in RemovalScope] == ["before_baseline", "loss_only", "weight"]
