"""GPG: a group baseline scaled by the inverse fraction of nonzero rewards."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.advantages import gpg


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    advantages = gpg(of(1, 0, 0.5, 0), integers(0, 0, 0, 0))  # two of four are nonzero: α = 2
    assert advantages.tolist() == near(1.25, -0.75, 0.25, -0.75)


def test_weight_counts_the_whole_batch():
    advantages = gpg(of(1, 0, 0, 0), integers(0, 0, 1, 1))
    assert advantages.tolist() == near(4 * 0.5, -4 * 0.5, 0, 0)


def test_batch_without_rewards_gives_zero():
    assert gpg(of(0, 0), integers(0, 0)).tolist() == [0.0, 0.0]


def test_scale_divides_the_advantages():
    assert gpg(of(1, 0, 0.5, 0), integers(0, 0, 0, 0), scale=4.0).tolist() == near(
        1.25 / 4, -0.75 / 4, 0.25 / 4, -0.75 / 4
    )
