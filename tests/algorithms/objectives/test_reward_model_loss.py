"""Losses of reward models and the reward of referees."""

import pytest
import torch

from support.batches import integers, of
from whetstone.algorithms import group_relative
from whetstone.algorithms.objectives import bradley_terry, process_cross_entropy, process_preference, referee_reward


def test_worked_numbers_of_a_pair():
    better, worse = of(1.2).requires_grad_(), of(0.4).requires_grad_()
    loss = bradley_terry(better, worse)
    loss.sum().backward()
    assert loss.item() == pytest.approx(0.371101, abs=1e-6)
    assert (better.grad.item(), worse.grad.item()) == pytest.approx((-0.310026, 0.310026), abs=1e-6)


def loss_and_gradient(sums, turns, pool):
    now = of(*sums).requires_grad_()
    result = process_preference(now, of(0, 0), of(1, 0), integers(0, 0), integers(*turns), pool=pool)
    result.loss.backward()
    return result.loss.item(), now.grad.tolist()


def test_successes_are_compared_with_failures():
    # winner .2 + 1, loser −.3 + .1 in two turns each: scores .03 and −.005
    value, slope = loss_and_gradient([1.2, -0.2], [2, 2], "mean")
    assert value == pytest.approx(0.675800, abs=1e-6)
    assert slope == pytest.approx([-0.012281, 0.012281], abs=1e-6)
    assert loss_and_gradient([1.2, -0.3], [3, 1], "sum")[0] == pytest.approx(0.656350, abs=1e-6)
    assert loss_and_gradient([6, 0], [2, 2], "sum")[0] == pytest.approx(0.554355, abs=1e-6)
    assert loss_and_gradient([6, 0], [2, 2], "mean")[0] == pytest.approx(0.620957, abs=1e-6)


def test_group_of_failures_gives_zero_loss_and_gradient():
    now = of(1, 2).requires_grad_()
    result = process_preference(now, of(0, 0), of(0, 0), integers(0, 0), integers(1, 1))
    result.loss.backward()
    assert (result.loss.item(), now.grad.tolist()) == (0, [0, 0])


def test_worked_numbers_of_the_cross_entropy():
    now = of(1.2).requires_grad_()
    loss = process_cross_entropy(now, of(0), of(1))
    loss.sum().backward()
    assert loss.item() == pytest.approx(0.663597, abs=1e-6)
    assert now.grad.item() / 0.05 == pytest.approx(-0.485004, abs=1e-6)
    assert process_cross_entropy(of(2), of(0), of(1)).item() == pytest.approx(0.644397, abs=1e-6)
    # 2 − 0 and 3 − 1 have equal differences; a failure is log(1 + e^.1)
    result = process_cross_entropy(of(2, 3, 2), of(0, 1, 0), of(1, 1, 0))
    assert result.tolist() == pytest.approx([0.644397, 0.644397, 0.744397], abs=1e-6)
    assert process_cross_entropy(torch.zeros(1), torch.zeros(1), of(1)).dtype is torch.float32
    reference = of(1.0).requires_grad_()
    process_cross_entropy(now, reference, of(1)).sum().backward()
    assert reference.grad is None


def test_referee_reward_depends_on_the_order():
    truth = of(3, 2, 1)
    earned = [referee_reward(of(*scores), truth) for scores in ([9, 5, 7], [1, 2, 3], [9, 5, 1])]
    assert earned == pytest.approx([1 / 3, 0, 1])
    advantages = group_relative(of(*earned, 1 / 3), integers(0, 0, 0, 0))
    assert advantages.tolist() == pytest.approx([-0.198679, -0.993397, 1.390756, -0.198679], abs=1e-5)
    assert referee_reward(of(1, 1), of(1, 2)) == referee_reward(of(1), of(1)) == 0


def test_referee_reward_ignores_size_and_sign():
    assert referee_reward(of(1, 2, 3), of(-5, 0, 100)) == 1
    assert referee_reward(of(-2, -1), of(1, 2)) == 1
    # of three pairs one is a tie in the true scores: 2/3
    assert referee_reward(of(1, 2, 3), of(1, 1, 2)) == pytest.approx(2 / 3)


def test_equal_scores_do_not_count_as_accurate():
    result = process_preference(of(1, 1), of(0, 0), of(1, 0), integers(0, 0), integers(1, 1))
    assert result.metrics == {"implicit_prm/pairs": 1, "implicit_prm/accuracy": 0}
