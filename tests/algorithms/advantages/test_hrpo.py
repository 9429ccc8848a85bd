"""HRPO: rewards of turns are added after the normalization of outcomes."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.advantages import hrpo


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    outcomes, group = of(0.9, 0.4, 0.2), integers(0, 0, 0)
    plain = hrpo(outcomes, of(0, 0, 0), integers(0, 1, 2), group)
    assert plain.tolist() == near(1.109397, -0.277349, -0.832048)
    redundant = hrpo(outcomes, of(-1, 0, 0), integers(0, 1, 2), group)
    assert redundant[0].item() == pytest.approx(0.609397, abs=1e-5)
