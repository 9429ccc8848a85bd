"""States by digest and by predicates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.rewards import episode, score, task
from whetstone.rewards.environment_state.state import predicate_holds, state_digest
from whetstone.trajectory import EndReason

WORLD = {"orders": {"7": {"status": "sent", "items": [1, 2]}}, "open": {"a", "b"}}


def test_digest_depends_on_values_and_not_on_notation():
    same = {"open": {"b", "a"}, "orders": {"7": {"items": [1.0, 2], "status": "sent"}}}
    assert state_digest(WORLD) == state_digest(same)
    assert state_digest([1, 2]) != state_digest([2, 1])
    assert state_digest({"n": 1}) != state_digest({"n": True})
    assert state_digest({1: "x"}) != state_digest({"1": "x"})
    assert state_digest({"n": 0.1}) != state_digest({"n": 0.2})
    with pytest.raises(TypeError, match="function"):
        state_digest({"f": state_digest})


@given(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=5))
def test_collateral_change_is_detected(state):
    assert state_digest(dict(reversed(list(state.items())))) == state_digest(state)
    assert state_digest({**state, "never there before": 1}) != state_digest(state)


def test_predicates():
    assert predicate_holds(WORLD, {"path": "orders.7.status", "value": "sent"})
    assert predicate_holds(WORLD, {"path": "orders.7.items.1", "is": "at_least", "value": 2})
    assert predicate_holds(WORLD, {"path": "orders.7.items", "is": "contains", "value": 1})
    assert predicate_holds(WORLD, {"path": "orders", "is": "lacks", "value": "8"})
    assert predicate_holds(WORLD, {"path": "orders.7.status", "is": "matches", "value": "s.*"})
    assert not predicate_holds(WORLD, {"path": "orders.8.status", "is": "not_equal", "value": "sent"})
    assert not predicate_holds(WORLD, {"path": "orders.7.status", "is": "at_most", "value": 3})
    with pytest.raises(ValueError, match="no relation"):
        predicate_holds(WORLD, {"path": "orders", "is": "like", "value": 1})


def test_an_episode():
    problem = task("?", digest=state_digest(WORLD), predicates=[{"path": "n", "value": 1}, {"path": "m", "value": 2}])
    final_state = {"state": WORLD, "n": 1, "m": 2}
    assert score("state", episode("x", final=final_state), problem).success
    half = score("state", episode("x", final={**final_state, "m": 3}), problem)
    assert (half.value, half.parts["predicates"]) == (0, 0.5)
    assert score("state", episode("x", final={**final_state, "m": 3}), problem, partial_credit=True).value == 0.5
    collateral = {**final_state, "state": {**WORLD, "more": 1}}
    assert score("state", episode("x", final=collateral), problem, partial_credit=True).value == 0


def test_state_without_a_final_state():
    problem = task("?", digest="0")
    with pytest.raises(ValueError, match="verdict"):
        score("state", episode("x"), problem)
    assert score("state", episode("x", ended=EndReason.MAX_TURNS), problem).value == 0
    with pytest.raises(ValueError, match="neither"):
        score("state", episode("x", final={"n": 1}), task("?"))
