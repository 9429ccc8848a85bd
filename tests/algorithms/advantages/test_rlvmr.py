"""Turns among turns of the same kind of thought."""

import pytest

from tests_batches import of, whole
from whetstone.algorithms.advantages import rlvmr


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    # two planning turns in the first trajectory, one in the second
    found = rlvmr(of(1, 0), of(0.5, 0.5, 0), whole(0, 0, 1), whole(0, 0), whole(0, 0, 0))
    assert found.tolist() == near(0.642227, 0.642227, -0.930901)


def test_an_untagged_turn_has_the_outcomes_part_alone():
    found = rlvmr(of(1, 0), of(0.5, 0.5, 0), whole(0, 0, 1), whole(0, 0), whole(-1, 0, -1))
    assert found.tolist() == near(0.353553, 0.353553, -0.353553)
