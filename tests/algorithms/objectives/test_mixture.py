"""Demonstrations beside one's own."""

import pytest

from tests_batches import of
from whetstone.algorithms.objectives import entropy_weights, mixed, shaped_demonstration, supervised


def test_two_losses_with_divisors_of_their_own():
    assert mixed(of(0.2), of(1.6), 0.475).item() == pytest.approx(0.865)
    assert mixed(of(0.2), of(1.6), 0.0).item() == 0.2


def test_tokens_neither_known_nor_hopeless():
    found = supervised(of(0.05, 0.5, 0.95).log(), weigh="both_ways")
    assert found.loss.mean().item() == pytest.approx(0.106007, abs=1e-6)
    assert supervised(of(0.05, 0.5, 0.95).log()).loss.mean().item() == pytest.approx(1.246724, abs=1e-6)
    assert pytest.approx((0.0099, 0.25)) == (0.01 * 0.99, 0.25)


def test_rare_demonstrated_tokens_learn():
    now = of(0.01, 0.1, 0.5, 1).log().requires_grad_()
    found = shaped_demonstration(now, of(1, 1, 1, 1))
    found.loss.sum().backward()
    assert (-found.loss).tolist() == pytest.approx([0.090909, 0.5, 0.833333, 0.909091], abs=1e-6)
    assert (-now.grad).tolist() == pytest.approx([0.082645, 0.25, 0.138889, 0.082645], abs=1e-6)


def test_weights_by_entropy():
    found = entropy_weights(of(0.4, 0.4, 0.4), of(0, 1, -1), of(1, 0, 0))
    assert found.tolist() == pytest.approx([0.335160, 0.745912, 1], abs=1e-6)
