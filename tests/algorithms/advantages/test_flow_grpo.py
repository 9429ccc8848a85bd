"""Each turn is a sample."""

import pytest

from tests_batches import of, whole
from whetstone.algorithms.advantages import flow_grpo


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    outcomes, group, owner = of(1, 0), whole(0, 0), whole(0, 0, 0, 1)
    assert flow_grpo(outcomes, group, owner).tolist() == near(*[0.499999] * 3, -1.499997)
    assert flow_grpo(outcomes, group, owner, weight="trajectory").tolist() == near(*[0.707106] * 3, -0.707106)
