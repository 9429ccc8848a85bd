"""`duration_weighted` multiplies advantages by the relative duration of their turns."""

from support.batches import of
from whetstone.algorithms.advantage_transforms import duration_weighted


def test_worked_numbers():
    # seconds 1, 1, 4: mean 2, weights 1/2, 1/2, 2
    assert duration_weighted(of(1, -2, 0.5), of(1, 1, 4)).tolist() == [0.5, -1, 1]
    assert duration_weighted(of(1, -2, 0.5), of(1, 1, 4), max_ratio=1.5).tolist() == [0.5, -1, 0.75]


def test_unmeasured_durations_change_nothing():
    assert duration_weighted(of(1, -2), of(0, 0)).tolist() == [1, -2]
