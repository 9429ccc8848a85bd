"""Worked numbers of OTC, and wrong answers have no reward."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.rewards import episode, group, score, task, turn
from whetstone.rewards.efficiency.otc import call_efficiency

TASK = task("?", answer=7)


def calling(count, answer="7"):
    return episode(*[turn("", ("tool", {"n": k})) for k in range(count)], answer)


def test_single_factor_worked_numbers():
    assert [call_efficiency(m, None, smooth=4) for m in (0, 1, 2, 4)] == pytest.approx(
        [1, 0.8660, 0.7071, 0.5], abs=1e-4
    )


def test_worked_numbers_in_a_group():
    pairs = [(2, 2), (1, 2), (4, 2), (8, 2), (1, 0), (0, 0)]
    expected = [1, 0.8660, 0.8660, 0.5878, 0.8660, 1]
    assert [call_efficiency(m, n, smooth=4) for m, n in pairs] == pytest.approx(expected, abs=1e-4)


@given(st.integers(0, 40), st.integers(0, 40), st.floats(0.5, 20))
def test_factor_is_a_fraction_with_its_maximum_at_the_fewest_calls(calls, fewest, smooth):
    value = call_efficiency(calls, fewest, smooth=smooth)
    assert -1e-9 <= value <= 1
    assert value <= call_efficiency(fewest, fewest, smooth=smooth) + 1e-9
    assert call_efficiency(fewest, fewest, smooth=smooth) == pytest.approx(1) or fewest == 0


def test_fewest_calls_are_those_of_the_group():
    results = group("otc", [calling(2), calling(1), calling(0, "8"), calling(4)], TASK)
    assert [one.value for one in results] == pytest.approx([math.sin(2 * math.pi / 3), 1, 0, math.sin(4 * math.pi / 5)])
    assert [one.success for one in results] == [True, True, False, True]


def test_zero_calls_as_the_fewest_are_found_before_scoring():
    results = group("otc", [calling(0), calling(2)], TASK)
    assert [one.value for one in results] == pytest.approx([1, math.cos(2 * math.pi / 8)])


def test_group_of_wrong_answers_and_group_of_one():
    assert [one.value for one in group("otc", [calling(0, "8"), calling(3, "8")], TASK)] == [0, 0]
    assert group("otc", [calling(3)], TASK)[0].value == 1
    assert score("otc", calling(3), TASK).value == 1  # no other episode
    assert score("otc", calling(3), TASK, per_episode=True).value == pytest.approx(math.cos(3 * math.pi / 10))


def test_task_can_set_the_fewest_calls():
    known = task("?", answer=7, least=1)
    assert group("otc", [calling(3)], known, min_calls_key="least")[0].value == pytest.approx(math.sin(3 * math.pi / 4))


def test_only_listed_tools_count():
    one = episode(turn("", ("search", {}), ("note", {})), "7")
    assert score("otc", one, TASK, per_episode=True, tools=["search"], smooth=4).value == pytest.approx(
        0.8660, abs=1e-4
    )
