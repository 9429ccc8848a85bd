"""`difficulty_weighted` and DGRPO give hard tasks a higher weight."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.advantages import dgrpo, difficulty_weighted, group_relative


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


def test_worked_numbers():
    # 1 over the relative sizes .01 .02 .04: 100, 50, 25
    rewards, group = of(1, 0, 1, 0, 1, 0), integers(0, 0, 1, 1, 2, 2)
    hardness = 1 / of(0.01, 0.01, 0.02, 0.02, 0.04, 0.04)
    advantages = difficulty_weighted(rewards, group, hardness)
    assert (2 * advantages).abs().tolist() == near(1.714286, 1.714286, 0.857143, 0.857143, 0.428571, 0.428571)
    assert advantages[:2].sum() == 0


def test_weights_have_bounds():
    # hardness 100 and three times 1: the mean is 103/4, the weights 3.88 and 0.04 before clipping
    rewards, group = of(1, 0, 1, 0, 1, 0, 1, 0), integers(0, 0, 1, 1, 2, 2, 3, 3)
    hardness = of(100, 100, 1, 1, 1, 1, 1, 1)
    advantages = difficulty_weighted(rewards, group, hardness)
    assert advantages.tolist() == near(1.5, -1.5, *[0.5 / 3, -0.5 / 3] * 3)
    advantages = difficulty_weighted(rewards, group, hardness, low=0.0, high=9.0)
    assert advantages[:4].tolist() == near(0.5 * 400 / 103, -0.5 * 400 / 103, 0.5 * 4 / 103, -0.5 * 4 / 103)


def test_hardness_of_zero_is_refused():
    with pytest.raises(ValueError, match="hardness must be above 0"):
        difficulty_weighted(of(1, 0), integers(0, 0), of(0, 0))


def test_measured_hardness():
    # groups solved 3 of 4 and 1 of 4: weights .25 and .75, over their mean .5
    rewards, group = of(1, 1, 1, 0, 1, 0, 0, 0), integers(0, 0, 0, 0, 1, 1, 1, 1)
    plain = group_relative(rewards, group)
    advantages = dgrpo(rewards, group)
    assert (advantages / plain).tolist() == near(*[0.5] * 4, *[1.5] * 4)


def test_equally_hard_groups_are_grpo():
    rewards, group = of(1, 0, 0, 1), integers(0, 0, 1, 1)
    assert dgrpo(rewards, group).tolist() == near(*group_relative(rewards, group).tolist())


def test_reward_of_a_perfect_episode_is_an_option():
    # of at most 2 the groups earned 1.5 and .5: weights .25 and .75, over their mean .5; of at most 4 .625 and .875
    rewards, group = of(2, 2, 2, 0, 2, 0, 0, 0), integers(0, 0, 0, 0, 1, 1, 1, 1)
    plain = group_relative(rewards, group)
    assert (dgrpo(rewards, group, highest=2.0) / plain).tolist() == near(*[0.5] * 4, *[1.5] * 4)
    assert (dgrpo(rewards, group, highest=4.0) / plain).tolist() == near(*[0.625 / 0.75] * 4, *[0.875 / 0.75] * 4)
