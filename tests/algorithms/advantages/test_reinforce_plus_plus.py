"""REINFORCE++: one normalization over all action tokens of the batch."""

import pytest

from support.batches import integers, of
from whetstone.algorithms.advantages import reinforce_plus_plus, reinforce_plus_plus_baseline


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


OWNERS = (0, 0, 1, 1, 1)


def test_two_trajectories_with_a_penalty_per_token():
    # 1 on the last token of the first; −0.1 times log-ratios .2 .4 and .1 .3 .2. Returns .94 .96, −.06 −.05 −.02
    rewards = of(-0.02, 1 - 0.04, -0.01, -0.03, -0.02)
    advantages = reinforce_plus_plus(rewards, integers(*OWNERS))
    assert advantages.tolist() == near(1.076580, 1.113324, -0.760587, -0.742216, -0.687101)


def test_observation_between_action_tokens_does_not_stop_the_return():
    # mask 1 1 0 0 1 1, reward 1 on the last: every action token's return is 1, and equal returns have advantage 0
    assert reinforce_plus_plus(of(0, 0, 0, 1), integers(0, 0, 0, 0)).tolist() == [0.0] * 4
    with_another = reinforce_plus_plus(of(0, 0, 0, 1, 0), integers(0, 0, 0, 0, 1))
    assert len(set(with_another[:4].tolist())) == 1


def test_the_baseline_form_counts_tokens():
    advantages = reinforce_plus_plus_baseline(of(1, 0), integers(0, 0), integers(*OWNERS))
    assert advantages.tolist() == near(1.095445, 1.095445, -0.730297, -0.730297, -0.730297)


def test_batch_of_one_token_gives_zero():
    assert reinforce_plus_plus(of(3), integers(0)).tolist() == [0.0]


def test_discount_counts_action_tokens():
    # returns ½ 1 and 0: mean ½, deviation ½
    assert reinforce_plus_plus(of(0, 1, 0), integers(0, 0, 1), discount=0.5).tolist() == near(0, 1, -1)
