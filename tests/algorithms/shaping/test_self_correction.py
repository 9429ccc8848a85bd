"""`self_correction` rewards the improvement of the second attempt."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.shaping import self_correction


@pytest.mark.parametrize(("first", "second", "expected"), [(1, 1, 1), (0, 1, 11), (1, 0, -10), (0, 0, 0)])
def test_worked_numbers(first, second, expected):
    assert self_correction(of(first, second), integers(0, 0)).tolist() == [first, expected]
