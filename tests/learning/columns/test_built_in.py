"""Each column says what it is, one of what, and who gives it; estimators of ours read it as that."""

import inspect

import pytest

from tests_columns import batch_with
from whetstone.algorithms import ADVANTAGE_TRANSFORMS, ADVANTAGES, CREDIT_FILTERS, SHAPING, columns_of, level_of
from whetstone.learning.columns import COLUMN_BUILDERS, MODEL_COLUMNS, VALUE_POSITIONS, empty_column

ESTIMATORS = {**ADVANTAGES, **CREDIT_FILTERS, **ADVANTAGE_TRANSFORMS, **SHAPING}
FROM_OTHERS = {"process_rewards", "matched", "progress", "action_rewards", "tags", "roles", "hardness"}
"""Those that need a reward, a task or a seat."""


@pytest.mark.parametrize("name", COLUMN_BUILDERS)
def test_a_column_says_its_level_what_it_is_and_who_gives_it(name):
    declared = COLUMN_BUILDERS[name]
    assert declared.name == name
    assert declared.level in ("trajectory", "turn", "token")
    assert declared.about.endswith(".")
    assert bool(declared.provided_by) or declared.requires is None


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_read_columns_as_what_they_are(name):
    function = ESTIMATORS[name]
    for column in columns_of(function):
        if column in COLUMN_BUILDERS and inspect.signature(function).parameters[column].annotation != "Tensor":
            assert level_of(function, column) == COLUMN_BUILDERS[column].level, column


@pytest.mark.parametrize("name", sorted(COLUMN_BUILDERS.keys() - MODEL_COLUMNS - (FROM_OTHERS - {"process_rewards"})))
def test_what_needs_no_model_is_read_from_a_batch_with_one_number_for_each(name):
    batch, declared = batch_with(), COLUMN_BUILDERS[name]
    assert len(batch[name]) == {"trajectory": 2, "turn": 4, "token": 10}[declared.level]
    assert batch[name].dtype == empty_column(name).dtype


def test_every_head_has_its_slow_copy_and_both_say_something_last():
    for head in VALUE_POSITIONS:
        for name in (head, f"slow_{head}"):
            assert COLUMN_BUILDERS[name].level == ("token" if head == "token_values" else "turn")
            assert COLUMN_BUILDERS[f"last_{name}"].level == "trajectory"
            assert {name, f"last_{name}"} <= MODEL_COLUMNS
