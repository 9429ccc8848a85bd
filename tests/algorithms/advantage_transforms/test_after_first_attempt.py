"""`after_first_attempt` (SCoRe, stage 1) removes the advantages of the first attempt."""

from support.batches import of
from whetstone.algorithms.advantage_transforms import after_first_attempt


def test_worked_numbers():
    assert after_first_attempt(of(0.5, -1, 2, 0.25), of(1, 1, 0, 0)).tolist() == [0, 0, 2, 0.25]
