"""`overlong` lowers rewards linearly below the limit of length."""

import pytest

from support.batches import of
from whetstone.algorithms.shaping import overlong


def test_worked_numbers():
    rewards = overlong(of(0, 0, 0, 0), of(16000, 16384, 18432, 20480))
    assert rewards.tolist() == [0, 0, -0.5, -1]


def test_penalty_is_constant_beyond_the_limit():
    assert overlong(of(1, 1), of(20481, 40960), penalty=0.5).tolist() == [0.5, 0.5]


def test_buffer_must_fit_into_the_limit():
    for buffer in (11, 0, -1):
        with pytest.raises(ValueError, match=f"buffer must be above 0 and at most limit .10., got {buffer}"):
            overlong(of(0), of(1), limit=10, buffer=buffer)
    assert overlong(of(0, 0), of(5, 10), limit=10, buffer=10).tolist() == [-0.5, -1]
    assert overlong(of(0, 0), of(9, 10), limit=10, buffer=1).tolist() == [0, -1]
