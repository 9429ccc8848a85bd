"""Calls are compared as parsed values with their types."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.rewards import episode, score, task, turn
from whetstone.rewards.calls.canonical import Call, list_calls, same_call, same_value
from whetstone.trajectory import EndReason

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, 1.0, 2.0]) | st.text(max_size=3),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=2), below, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, True, False),
        (0, False, False),
        (1, 1.0, True),
        ("1", 1, False),
        (float("nan"), float("nan"), False),
        ({"a": 1, "b": [2, {"c": None}]}, {"b": [2.0, {"c": None}], "a": 1}, True),
        ([1, 2], [2, 1], False),
        ("\u00e9", "e\u0301", True),  # one letter, composed and decomposed
        (None, False, False),
        ([True], [1], False),
        ({}, [], False),
    ],
)
def test_typed_equality(one, other, same):
    assert same_value(one, other) is same
    assert same_value(other, one) is same


@given(PLAIN)
def test_value_is_equal_to_itself_after_json_and_in_any_order_of_keys(value):
    parsed = json.loads(json.dumps(value, sort_keys=True))
    assert same_value(value, parsed)


@given(PLAIN, PLAIN)
def test_equality_is_that_of_json_with_types(one, other):
    def typed(value):
        if isinstance(value, bool) or value is None or isinstance(value, str):
            return [type(value).__name__, value]
        if isinstance(value, int | float):
            return ["number", float(value)]
        if isinstance(value, dict):
            return ["mapping", sorted((key, json.dumps(typed(below))) for key, below in value.items())]
        return ["list", [typed(below) for below in value]]

    assert same_value(one, other) == (typed(one) == typed(other))


def test_arguments_that_are_no_object_are_equal():
    calls = list_calls(episode(turn("", ("a", "[1]"), ("b", "{")), turn("", ("c", {"x": 1})), "done"))
    assert [(call.name, dict(call.arguments), call.turn) for call in calls] == [
        ("a", {"": "[1]"}, 0),
        ("b", {"": "{"}, 0),
        ("c", {"x": 1}, 1),
    ]
    assert same_call(calls[2], Call("c", {"x": 1.0}))
    assert not same_call(calls[2], Call("C", {"x": 1}))


def test_truncated_call_was_not_executed():
    cut = episode(turn("", ("a", {})), turn("", ("b", {})), ended=EndReason.MAX_TOKENS)
    assert [call.name for call in list_calls(cut)] == ["a"]
    gold = task("?", calls=[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}], answer=1)
    assert not score("tool_rl", cut, gold).success
    assert score("tool_rl", cut, gold).parts["format"] == 0
    assert score("matched_calls", cut, gold).parts["action_rewards"] == 0.5
