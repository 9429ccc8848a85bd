"""`second_attempt_only` (SCoRe, stage 1) keeps only the rewards of the second attempt."""

from support.batches import of
from whetstone.algorithms.shaping import second_attempt_only


def test_worked_numbers():
    # a call, a first answer that is right, a call, a second answer
    assert second_attempt_only(of(0, 1, 0, 1), of(1, 1, 0, 0)).tolist() == [0, 0, 0, 1]
