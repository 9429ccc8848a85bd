"""Flow-GRPO normalizes over turns or over trajectories."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.advantages import flow_grpo


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    outcomes, group, owner = of(1, 0, 0.5), integers(0, 0, 0), integers(0, 0, 0, 1, 2)
    # over turns 1 1 1 0 ½: mean .7, squares 3 · .09 + .49 + .04 = .8, deviation √.2
    over_turns = [x / 0.2**0.5 for x in (0.3, 0.3, 0.3, -0.7, -0.2)]
    assert flow_grpo(outcomes, group, owner).tolist() == near(*over_turns)
    # over trajectories 1 0 ½: mean ½, deviation ½
    assert flow_grpo(outcomes, group, owner, weight="trajectory").tolist() == near(1, 1, 1, -1, 0)
