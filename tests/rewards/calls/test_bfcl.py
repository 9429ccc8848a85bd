"""Accepted values are compared as in the Berkeley Function-Calling Leaderboard."""

import pytest

from support.rewards import episode, score, task, turn
from whetstone.rewards.calls.bfcl import mismatch_reason
from whetstone.rewards.calls.canonical import Call

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


def test_parallel_calls_match_in_any_order_once_each():
    both = [{"weather": {"city": ["Rome"]}}, {"weather": {"city": ["Oslo", "Rome"]}}]
    assert right(both, {"city": "Oslo"}, {"city": "Rome"})
    assert right(both, {"city": "Rome"}, {"city": "Rome"})
    assert not right(both, {"city": "Oslo"}, {"city": "Oslo"})
    assert not right(both, {"city": "Rome"})


def test_no_call_is_expected():
    nothing = task("?", possible_answer=[], functions=[WEATHER])
    assert score("bfcl", episode("I cannot"), nothing).success
    assert not score("bfcl", episode(turn("", ("weather", {"city": "x"})), "done"), nothing).success
    assert not score("bfcl", episode(turn("<x>", malformed=["<x>"])), nothing).success


@pytest.mark.parametrize(
    ("schema", "accepted", "value", "fits"),
    [
        ("string", ["", None], None, True),
        ("string", [True], True, True),
        ("string", [2], 2, True),
        ("integer", ["ResultSet.ALL"], "ResultSet.ALL", True),
        ("array", ["myItems"], "myItems", True),
        ("array", [["a"]], "a", False),
        ("integer", [1], True, False),
        ("HashMap", [{"a": [1]}], {"a": 1}, True),
        ("ArrayList", [["a"]], ["A"], True),
        ("long", [5], 5.0, False),
        ("char", ["x"], "x", True),
        ("", ["x"], "x", True),
    ],
)
def test_value_of_the_type_of_an_accepted_value_has_the_right_type(schema, accepted, value, fits):
    function = {"name": "weather", "parameters": {"properties": {"it": {"type": schema}}, "required": ["it"]}}
    one = episode(turn("", ("weather", {"it": value})), "done")
    problem = task("?", possible_answer=[{"weather": {"it": accepted}}], functions=[function])
    assert score("bfcl", one, problem).success is fits


def test_nested_values_are_compared_literally():
    place = [{"position": [{"lateral": 10.5, "longitudinal": 50}], "lanes": [[1, 2]]}]
    at = {"position": {"lateral": 10.5, "longitudinal": 50}, "lanes": [1, 2]}
    assert right([{"weather": {"city": ["x"], "at": place}}], {"city": "x", "at": at})
    for other in ({"lanes": 1}, {"position": {}}):
        assert not right([{"weather": {"city": ["x"], "at": place}}], {"city": "x", "at": {**at, **other}})
    orders = [[{"item": ["tea"], "count": [2]}, {"item": ["rice"], "count": [1, ""]}]]
    near = [{"item": "Tea", "count": 2}, {"item": "rice"}]
    assert right([{"weather": {"city": ["x"], "near": orders}}], {"city": "x", "near": near})


@pytest.mark.parametrize("arguments", ["not json", "[[[", "null", "[]", '{"a":', ""])
def test_unreadable_arguments_are_not_empty_arguments(arguments):
    """Refuse a call with unreadable arguments of a function without parameters."""
    now = {"name": "now", "parameters": {"properties": {}, "required": []}}
    one = episode(turn("", ("now", arguments)))
    for possible in ([{"now": {}}], [], None):
        assert not score("bfcl", one, task("?", possible_answer=possible, functions=[now])).success
    assert not score("tool_rl", one, task("?", calls=[{"name": "now", "arguments": {}}])).success
    fine = episode(turn("", ("now", "{}")))
    assert score("bfcl", fine, task("?", possible_answer=[{"now": {}}], functions=[now])).success


def test_any_offered_function_is_accepted_if_a_call_is_expected():
    anything = task("?", possible_answer=None, functions=[WEATHER])
    assert score("bfcl", episode(turn("", ("weather", {"city": "x"}))), anything).success
    assert not score("bfcl", episode("I cannot"), anything).success
    assert not score("bfcl", episode(turn("", ("wether", {"city": "x"}))), anything).success
    assert not score("bfcl", episode(turn("<x>", malformed=["<x>"])), anything).success


KINDS = {
    "integer": (3, 3.5),
    "int": (3, "3"),
    "float": (3.5, "3.5"),
    "number": (3, True),
    "double": (3.0, "3"),
    "string": ("x", 3),
    "str": ("x", ["x"]),
    "boolean": (True, 1),
    "bool": (False, 0),
    "array": ([1], 1),
    "list": ([1], {"a": 1}),
    "tuple": ([1], "1"),
    "object": ({"a": 1}, [1]),
    "dict": ({"a": 1}, "a"),
    "null": (None, 0),
    "any": ("x", None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_type_accepts_its_values_and_no_others(kind):
    fits, other = KINDS[kind]
    schemas = {"f": {"name": "f", "parameters": {"properties": {"x": {"type": kind}}}}}
    assert mismatch_reason(Call("f", {"x": fits}), {"f": {"x": [fits]}}, schemas) == ""
    problem = f"x is {other!r}{'' if kind == 'any' else ', which has another type'}"
    assert mismatch_reason(Call("f", {"x": other}), {"f": {"x": [fits]}}, schemas) == problem


def test_texts_and_lists_are_compared():
    assert right([{"weather": {"city": ["it's"]}}], {"city": 'It"s'})
    assert not right([{"weather": {"city": ["Straße"]}}], {"city": "STRASSE"})
    assert not right([ACCEPTED], {"city": "Paris", "unit": "-"})  # "" only means that it is optional
    assert right([ACCEPTED], {"city": "Paris", "unit": ""})
    near = [{"weather": {"city": ["x"], "near": [["a", "b"]]}}]
    assert [right(near, {"city": "x", "near": items}) for items in (["a", "b"], ["a"], ["b", "a"])] == [
        True,
        False,
        False,
    ]
    bare = task("?", possible_answer=[{"f.g": {"x": [1]}}], functions=[{"name": "f.g"}])
    assert score("bfcl", episode(turn("", ("f_g", {"x": 1}))), bare).success
    assert mismatch_reason(Call("g", {}), {"f": {}}, {}) == "g is called, not f"
    assert mismatch_reason(Call("f", {}), {"f": {"x": [1]}}, {}) == "x is left out"
    assert mismatch_reason(Call("f", {"x": 2}), {"f": {"x": [1]}}, {}) == "x is 2"
    assert mismatch_reason(Call("f", {"y": 2}), {"f": {"x": [1]}}, {}) == "there is no y"
    needed = {"f": {"parameters": {"required": ["x"]}}}
    assert mismatch_reason(Call("f", {}), {"f": {"x": [1, ""]}}, needed) == "x is missing"
