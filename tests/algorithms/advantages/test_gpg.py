"""Trajectories over those that earned anything."""

import pytest

from tests_batches import of, whole
from whetstone.algorithms.advantages import gpg


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    found = gpg(of(1, 0, 0.5, 0), whole(0, 0, 0, 0))  # two of four earned anything: α = 2
    assert found.tolist() == near(1.25, -0.75, 0.25, -0.75)


def test_the_weight_counts_the_whole_batch():
    found = gpg(of(1, 0, 0, 0), whole(0, 0, 1, 1))
    assert found.tolist() == near(4 * 0.5, -4 * 0.5, 0, 0)


def test_a_batch_in_which_nobody_earned_anything_is_zero():
    assert gpg(of(0, 0), whole(0, 0)).tolist() == [0.0, 0.0]


def test_a_scale_divides():
    assert gpg(of(1, 0, 0.5, 0), whole(0, 0, 0, 0), scale=4.0).tolist() == near(
        1.25 / 4, -0.75 / 4, 0.25 / 4, -0.75 / 4
    )
