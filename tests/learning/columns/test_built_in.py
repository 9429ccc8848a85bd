"""Built-in columns declare their description, level and source, and estimators read them at that level."""

import inspect

import pytest

from support.custom_columns import batch_with
from whetstone.algorithms import (
    ADVANTAGE_TRANSFORMS,
    ADVANTAGES,
    CREDIT_FILTERS,
    SHAPING,
    annotated_level,
    column_names,
)
from whetstone.learning.columns import COLUMN_BUILDERS, MODEL_COLUMNS, VALUE_POSITIONS, create_empty_column

ESTIMATORS = {**ADVANTAGES, **CREDIT_FILTERS, **ADVANTAGE_TRANSFORMS, **SHAPING}
FROM_OTHERS = {"process_rewards", "matched", "progress", "action_rewards", "tags", "roles", "hardness"}
"""Columns that require a reward, a task or a seat."""


@pytest.mark.parametrize("name", COLUMN_BUILDERS)
def test_columns_declare_level_description_and_source(name):
    declared = COLUMN_BUILDERS[name]
    assert declared.name == name
    assert declared.level in ("trajectory", "turn", "token")
    assert declared.about.endswith(".")
    assert bool(declared.provided_by) or declared.requires is None


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_read_columns_at_their_level(name):
    function = ESTIMATORS[name]
    for column in column_names(function):
        if column in COLUMN_BUILDERS and inspect.signature(function).parameters[column].annotation != "Tensor":
            assert annotated_level(function, column) == COLUMN_BUILDERS[column].level, column


@pytest.mark.parametrize("name", sorted(COLUMN_BUILDERS.keys() - MODEL_COLUMNS - (FROM_OTHERS - {"process_rewards"})))
def test_columns_without_a_model_have_one_number_per_item(name):
    batch, declared = batch_with(), COLUMN_BUILDERS[name]
    assert len(batch[name]) == {"trajectory": 2, "turn": 4, "token": 10}[declared.level]
    assert batch[name].dtype == create_empty_column(name).dtype


def test_every_head_has_a_target_network_and_both_have_last_values():
    for head in VALUE_POSITIONS:
        for name in (head, f"slow_{head}"):
            assert COLUMN_BUILDERS[name].level == ("token" if head == "token_values" else "turn")
            assert COLUMN_BUILDERS[f"last_{name}"].level == "trajectory"
            assert {name, f"last_{name}"} <= MODEL_COLUMNS
