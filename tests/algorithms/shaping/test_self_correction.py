"""A second attempt is paid for what it mends."""

import pytest

from tests_batches import of, whole
from whetstone.algorithms.shaping import self_correction


@pytest.mark.parametrize(("first", "second", "expected"), [(1, 1, 1), (0, 1, 11), (1, 0, -10), (0, 0, 0)])
def test_worked_numbers(first, second, expected):
    assert self_correction(of(first, second), whole(0, 0)).tolist() == [first, expected]
