"""The unsure turns keep their advantage."""

import math

import pytest

from tests_batches import of
from whetstone.algorithms.advantage_transforms import high_entropy_turns


def test_worked_numbers():
    # of five turns 80 % stay: all but the second
    found = high_entropy_turns(of(1, 2, 3, 4, 5), of(0.9, 0.1, 0.5, 0.7, 0.3))
    assert found.tolist() == [1, 0, 3, 4, 5]


def test_all_of_them_is_nothing_done_and_the_unknown_go_first():
    assert high_entropy_turns(of(1, -2), of(0.5, math.nan), fraction=1).tolist() == [1, -2]
    assert high_entropy_turns(of(1, -2), of(0.5, math.nan), fraction=0.5).tolist() == [1, 0]
    assert high_entropy_turns(of(), of()).tolist() == []


def test_no_entropy_is_less_than_one_of_nothing():
    assert high_entropy_turns(of(1, -2), of(math.nan, 0.0), fraction=0.5).tolist() == [0, -2]


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_a_share_is_a_share(share):
    with pytest.raises(ValueError, match=rf"in \(0, 1\], got {share:g}"):
        high_entropy_turns(of(1), of(1), fraction=share)
