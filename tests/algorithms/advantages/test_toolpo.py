"""Correct calls are credited on the tokens of calls."""

import pytest

from tests_batches import of, whole
from whetstone.algorithms.advantages import group_relative, toolpo


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    owner, calls = whole(0, 0, 1, 1, 2, 2), of(0, 1, 0, 1, 0, 1)
    found = toolpo(of(1, 0, 1), of(2, 1, 1.5), whole(0, 0, 0), owner, calls)
    assert found.tolist() == near(0.333333, 0.833333, -0.666667, -1.166667, 0.333333, 0.333333)


def test_without_call_tokens_it_is_the_mean_baseline():
    owner = whole(0, 1, 2)
    found = toolpo(of(1, 0, 1), of(2, 1, 1.5), whole(0, 0, 0), owner, of(0, 0, 0))
    assert found.tolist() == near(*group_relative(of(1, 0, 1), whole(0, 0, 0), scale=False).tolist())
