"""States by digest and by predicates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests_rewards import episode, score, task
from whetstone.rewards.worlds.state import digest, holds
from whetstone.trajectory import EndReason

WORLD = {"orders": {"7": {"status": "sent", "items": [1, 2]}}, "open": {"a", "b"}}


def test_a_digest_sees_what_is_there_and_not_how_it_is_written():
    same = {"open": {"b", "a"}, "orders": {"7": {"items": [1.0, 2], "status": "sent"}}}
    assert digest(WORLD) == digest(same)
    assert digest([1, 2]) != digest([2, 1])
    assert digest({"n": 1}) != digest({"n": True})
    assert digest({1: "x"}) != digest({"1": "x"})
    assert digest({"n": 0.1}) != digest({"n": 0.2})
    with pytest.raises(TypeError, match="function"):
        digest({"f": digest})


@given(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=5))
def test_collateral_change_is_seen(state):
    assert digest(dict(reversed(list(state.items())))) == digest(state)
    assert digest({**state, "never there before": 1}) != digest(state)


def test_predicates():
    assert holds(WORLD, {"path": "orders.7.status", "value": "sent"})
    assert holds(WORLD, {"path": "orders.7.items.1", "is": "at_least", "value": 2})
    assert holds(WORLD, {"path": "orders.7.items", "is": "contains", "value": 1})
    assert holds(WORLD, {"path": "orders", "is": "lacks", "value": "8"})
    assert holds(WORLD, {"path": "orders.7.status", "is": "matches", "value": "s.*"})
    assert not holds(WORLD, {"path": "orders.8.status", "is": "not_equal", "value": "sent"})
    assert not holds(WORLD, {"path": "orders.7.status", "is": "at_most", "value": 3})
    with pytest.raises(ValueError, match="no relation"):
        holds(WORLD, {"path": "orders", "is": "like", "value": 1})


def test_an_episode():
    given = task("?", digest=digest(WORLD), predicates=[{"path": "n", "value": 1}, {"path": "m", "value": 2}])
    whole = {"state": WORLD, "n": 1, "m": 2}
    assert score("state", episode("x", final=whole), given).success
    half = score("state", episode("x", final={**whole, "m": 3}), given)
    assert (half.value, half.parts["predicates"]) == (0, 0.5)
    assert score("state", episode("x", final={**whole, "m": 3}), given, partial_credit=True).value == 0.5
    collateral = {**whole, "state": {**WORLD, "more": 1}}
    assert score("state", episode("x", final=collateral), given, partial_credit=True).value == 0


def test_where_nothing_is_known():
    given = task("?", digest="0")
    with pytest.raises(ValueError, match="verdict"):
        score("state", episode("x"), given)
    assert score("state", episode("x", ended=EndReason.MAX_TURNS), given).value == 0
    with pytest.raises(ValueError, match="neither"):
        score("state", episode("x", final={"n": 1}), task("?"))
