"""Accepted values, as the leaderboard compares them."""

import pytest

from tests_rewards import episode, score, task, turn

WEATHER = {
    "name": "weather",
    "parameters": {
        "properties": {
            "city": {"type": "string"},
            "unit": {"type": "string"},
            "days": {"type": "integer"},
            "level": {"type": "float"},
            "flag": {"type": "boolean"},
            "near": {"type": "array"},
            "at": {"type": "dict"},
        },
        "required": ["city"],
    },
}
ACCEPTED = {"weather": {"city": ["Paris"], "unit": ["celsius", "C", ""]}}


def right(accepted, *calls):
    one = episode(turn("", *(("weather", arguments) for arguments in calls)), "done")
    return score("bfcl", one, task("?", possible_answer=accepted, functions=[WEATHER])).success


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ({"city": "Paris", "unit": "C"}, True),
        ({"city": "Paris", "unit": "c"}, True),
        ({"city": "paris", "unit": "CELSIUS"}, True),
        ({"city": "Paris"}, True),
        ({"city": "Paris", "unit": "kelvin"}, False),
        ({"city": "Paris", "unit": "C", "lang": "fr"}, False),
        ({"unit": "C"}, False),
        ({"city": 3}, False),
    ],
)
def test_accepted_values(arguments, fits):
    assert right([ACCEPTED], arguments) is fits


def test_types():
    assert right([{"weather": {"city": ["x"], "level": [3.0]}}], {"city": "x", "level": 3})
    assert not right([{"weather": {"city": ["x"], "days": [3]}}], {"city": "x", "days": 3.0})
    assert not right([{"weather": {"city": ["x"], "days": [1]}}], {"city": "x", "days": True})
    assert right([{"weather": {"city": ["x"], "flag": [True]}}], {"city": "x", "flag": True})
    assert right([{"weather": {"city": ["x"], "near": [["A b", "c"]]}}], {"city": "x", "near": ["ab", "C"]})
    assert right([{"weather": {"city": ["x"], "at": [{"h": [1, 2], "m": [0, ""]}]}}], {"city": "x", "at": {"h": 2}})
    assert not right([{"weather": {"city": ["x"], "at": [{"h": [1, 2]}]}}], {"city": "x", "at": {"h": 3}})


def test_parallel_calls_in_any_order_each_once():
    both = [{"weather": {"city": ["Rome"]}}, {"weather": {"city": ["Oslo", "Rome"]}}]
    assert right(both, {"city": "Oslo"}, {"city": "Rome"})
    assert right(both, {"city": "Rome"}, {"city": "Rome"})
    assert not right(both, {"city": "Oslo"}, {"city": "Oslo"})
    assert not right(both, {"city": "Rome"})


def test_where_nothing_is_to_be_called():
    nothing = task("?", possible_answer=[], functions=[WEATHER])
    assert score("bfcl", episode("I cannot"), nothing).success
    assert not score("bfcl", episode(turn("", ("weather", {"city": "x"})), "done"), nothing).success
    assert not score("bfcl", episode(turn("<x>", malformed=["<x>"])), nothing).success
