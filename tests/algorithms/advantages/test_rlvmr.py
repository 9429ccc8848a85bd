"""RLVMR: turns are normalized among turns with the same tag."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.advantages import rlvmr


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    # two planning turns in the first trajectory, one in the second
    advantages = rlvmr(of(1, 0), of(0.5, 0.5, 0), integers(0, 0, 1), integers(0, 0), integers(0, 0, 0))
    assert advantages.tolist() == near(0.642227, 0.642227, -0.930901)


def test_untagged_turn_has_only_the_outcome_term():
    advantages = rlvmr(of(1, 0), of(0.5, 0.5, 0), integers(0, 0, 1), integers(0, 0), integers(-1, 0, -1))
    assert advantages.tolist() == near(0.353553, 0.353553, -0.353553)
