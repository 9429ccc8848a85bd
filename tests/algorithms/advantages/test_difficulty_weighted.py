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
    # hardness 100 and three times 1: the mean is 103/4, the weights 3.88 and 0.04 before they are bound
    rewards, group = of(1, 0, 1, 0, 1, 0, 1, 0), whole(0, 0, 1, 1, 2, 2, 3, 3)
    hardness = of(100, 100, 1, 1, 1, 1, 1, 1)
    found = difficulty_weighted(rewards, group, hardness)
    assert found.tolist() == near(1.5, -1.5, *[0.5 / 3, -0.5 / 3] * 3)
    found = difficulty_weighted(rewards, group, hardness, low=0.0, high=9.0)
    assert found[:4].tolist() == near(0.5 * 400 / 103, -0.5 * 400 / 103, 0.5 * 4 / 103, -0.5 * 4 / 103)


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


def test_the_reward_of_a_perfect_episode_may_be_another():
    # of at most 2 the groups earned 1.5 and .5: weights .25 and .75, over their mean .5; of at most 4 .625 and .875
    rewards, group = of(2, 2, 2, 0, 2, 0, 0, 0), whole(0, 0, 0, 0, 1, 1, 1, 1)
    plain = group_relative(rewards, group)
    assert (dgrpo(rewards, group, highest=2.0) / plain).tolist() == near(*[0.5] * 4, *[1.5] * 4)
    assert (dgrpo(rewards, group, highest=4.0) / plain).tolist() == near(*[0.625 / 0.75] * 4, *[0.875 / 0.75] * 4)
