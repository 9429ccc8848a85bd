"""Hard tasks count more."""

import pytest

from tests_batches import of, whole
from whetstone.algorithms.advantages import dgrpo, difficulty_weighted, group_relative


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    # 1 over the relative sizes .01 .02 .04: 100, 50, 25
    rewards, group = of(1, 0, 1, 0, 1, 0), whole(0, 0, 1, 1, 2, 2)
    hardness = 1 / of(0.01, 0.01, 0.02, 0.02, 0.04, 0.04)
    found = difficulty_weighted(rewards, group, hardness)
    assert (2 * found).abs().tolist() == near(1.714286, 1.714286, 0.857143, 0.857143, 0.428571, 0.428571)
    assert found[:2].sum() == 0


def test_weights_have_bounds():
    found = difficulty_weighted(of(1, 0, 1, 0), whole(0, 0, 1, 1), of(100, 100, 1, 1))
    assert found.tolist() == near(0.5 * 200 / 101, -0.5 * 200 / 101, 0.5 / 3, -0.5 / 3)


def test_a_hardness_that_is_none_is_refused():
    with pytest.raises(ValueError, match="hardness is above 0"):
        difficulty_weighted(of(1, 0), whole(0, 0), of(0, 0))


def test_measured_hardness():
    # groups solved 3 of 4 and 1 of 4: weights .25 and .75, over their mean .5
    rewards, group = of(1, 1, 1, 0, 1, 0, 0, 0), whole(0, 0, 0, 0, 1, 1, 1, 1)
    plain = group_relative(rewards, group)
    found = dgrpo(rewards, group)
    assert (found / plain).tolist() == near(*[0.5] * 4, *[1.5] * 4)


def test_equally_hard_groups_are_grpo():
    rewards, group = of(1, 0, 0, 1), whole(0, 0, 1, 1)
    assert dgrpo(rewards, group).tolist() == near(*group_relative(rewards, group).tolist())
