"""`high_entropy_turns` keeps the advantages of turns with high entropy."""

import math

import pytest

from support.batches import of
from whetstone.algorithms.advantage_transforms import high_entropy_turns


def test_worked_numbers():
    # of five turns 80 % stay: all but the second
    result = high_entropy_turns(of(1, 2, 3, 4, 5), of(0.9, 0.1, 0.5, 0.7, 0.3))
    assert result.tolist() == [1, 0, 3, 4, 5]


def test_fraction_one_keeps_everything_and_unmeasured_turns_are_removed_first():
    assert high_entropy_turns(of(1, -2), of(0.5, math.nan), fraction=1).tolist() == [1, -2]
    assert high_entropy_turns(of(1, -2), of(0.5, math.nan), fraction=0.5).tolist() == [1, 0]
    assert high_entropy_turns(of(), of()).tolist() == []


def test_unmeasured_entropy_ranks_below_zero_entropy():
    assert high_entropy_turns(of(1, -2), of(math.nan, 0.0), fraction=0.5).tolist() == [0, -2]


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_fraction_outside_its_range_is_refused(share):
    with pytest.raises(ValueError, match=rf"in \(0, 1\], got {share:g}"):
        high_entropy_turns(of(1), of(1), fraction=share)
