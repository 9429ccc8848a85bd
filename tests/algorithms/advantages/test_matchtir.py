"""Turn rewards on two levels."""

import pytest

from tests_batches import of, whole
from whetstone.algorithms.advantages import matchtir


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


TURNS = of(0.75, 1, 1, 0, 1, 0, 0.5)
OWNER, NUMBER = whole(0, 0, 0, 1, 1, 1, 2), whole(0, 1, 2, 0, 1, 2, 0)


def test_worked_numbers():
    found = matchtir(TURNS, OWNER, whole(0, 0, 0), NUMBER)
    assert found.tolist() == near(1.130757, 0.917829, 0.917829, -0.363018, -0.529889, -0.529889, -0.767740)


def test_without_the_turns_it_is_grpo_of_the_sums():
    found = matchtir(TURNS, OWNER, whole(0, 0, 0), NUMBER, weight=0.0)
    assert found.tolist() == near(*[1.128552] * 3, *[-0.352673] * 3, -0.775880)
