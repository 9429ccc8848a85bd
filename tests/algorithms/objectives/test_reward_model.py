"""Models that judge."""

import pytest
import torch

from tests_batches import of, whole
from whetstone.algorithms import group_relative
from whetstone.algorithms.objectives import bradley_terry, process_cross_entropy, process_preference, referee_reward


def test_a_pair():
    better, worse = of(1.2).requires_grad_(), of(0.4).requires_grad_()
    loss = bradley_terry(better, worse)
    loss.sum().backward()
    assert loss.item() == pytest.approx(0.371101, abs=1e-6)
    assert (better.grad.item(), worse.grad.item()) == pytest.approx((-0.310026, 0.310026), abs=1e-6)


def said(sums, turns, pool):
    now = of(*sums).requires_grad_()
    found = process_preference(now, of(0, 0), of(1, 0), whole(0, 0), whole(*turns), pool=pool)
    found.loss.backward()
    return found.loss.item(), now.grad.tolist()


def test_successes_against_failures():
    # winner .2 + 1, loser −.3 + .1 in two turns each: scores .03 and −.005
    value, slope = said([1.2, -0.2], [2, 2], "mean")
    assert value == pytest.approx(0.675800, abs=1e-6)
    assert slope == pytest.approx([-0.012281, 0.012281], abs=1e-6)
    assert said([1.2, -0.3], [3, 1], "sum")[0] == pytest.approx(0.656350, abs=1e-6)
    assert said([6, 0], [2, 2], "sum")[0] == pytest.approx(0.554355, abs=1e-6)
    assert said([6, 0], [2, 2], "mean")[0] == pytest.approx(0.620957, abs=1e-6)


def test_a_group_in_which_all_failed_teaches_nothing():
    now = of(1, 2).requires_grad_()
    found = process_preference(now, of(0, 0), of(0, 0), whole(0, 0), whole(1, 1))
    found.loss.backward()
    assert (found.loss.item(), now.grad.tolist()) == (0, [0, 0])


def test_cross_entropy_with_success():
    now = of(1.2).requires_grad_()
    loss = process_cross_entropy(now, of(0), of(1))
    loss.sum().backward()
    assert loss.item() == pytest.approx(0.663597, abs=1e-6)
    assert now.grad.item() / 0.05 == pytest.approx(-0.485004, abs=1e-6)
    assert process_cross_entropy(of(2), of(0), of(1)).item() == pytest.approx(0.644397, abs=1e-6)
    # 2 − 0 and 3 − 1 are as far apart; a failure is log(1 + e^.1)
    found = process_cross_entropy(of(2, 3, 2), of(0, 1, 0), of(1, 1, 0))
    assert found.tolist() == pytest.approx([0.644397, 0.644397, 0.744397], abs=1e-6)
    assert process_cross_entropy(torch.zeros(1), torch.zeros(1), of(1)).dtype is torch.float32
    reference = of(1.0).requires_grad_()
    process_cross_entropy(now, reference, of(1)).sum().backward()
    assert reference.grad is None


def test_a_referee_is_paid_for_its_order():
    truth = of(3, 2, 1)
    earned = [referee_reward(of(*scores), truth) for scores in ([9, 5, 7], [1, 2, 3], [9, 5, 1])]
    assert earned == pytest.approx([1 / 3, 0, 1])
    found = group_relative(of(*earned, 1 / 3), whole(0, 0, 0, 0))
    assert found.tolist() == pytest.approx([-0.198679, -0.993397, 1.390756, -0.198679], abs=1e-5)
    assert referee_reward(of(1, 1), of(1, 2)) == referee_reward(of(1), of(1)) == 0


def test_the_order_is_what_is_paid_not_the_size_or_the_sign():
    assert referee_reward(of(1, 2, 3), of(-5, 0, 100)) == 1
    assert referee_reward(of(-2, -1), of(1, 2)) == 1
    # of three pairs one is a tie in truth: 2/3
    assert referee_reward(of(1, 2, 3), of(1, 1, 2)) == pytest.approx(2 / 3)


def test_scores_that_are_the_same_are_not_right():
    found = process_preference(of(1, 1), of(0, 0), of(1, 0), whole(0, 0), whole(1, 1))
    assert found.metrics == {"implicit_prm/pairs": 1, "implicit_prm/accuracy": 0}
