"""MatchTIR: turn rewards on two levels."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.advantages import matchtir


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


TURNS = of(0.75, 1, 1, 0, 1, 0, 0.5)
OWNER, NUMBER = integers(0, 0, 0, 1, 1, 1, 2), integers(0, 1, 2, 0, 1, 2, 0)


def test_worked_numbers():
    advantages = matchtir(TURNS, OWNER, integers(0, 0, 0), NUMBER)
    assert advantages.tolist() == near(1.130757, 0.917829, 0.917829, -0.363018, -0.529889, -0.529889, -0.767740)


def test_zero_turn_weight_is_grpo_of_the_sums():
    advantages = matchtir(TURNS, OWNER, integers(0, 0, 0), NUMBER, weight=0.0)
    assert advantages.tolist() == near(*[1.128552] * 3, *[-0.352673] * 3, -0.775880)
