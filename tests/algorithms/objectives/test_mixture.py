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
    # p (1 − p) of .01 and .5: .0099 and .25, each times −log p
    rare = supervised(of(0.01, 0.5).log(), weigh="both_ways").loss
    assert rare.tolist() == pytest.approx([0.0099 * 4.605170, 0.25 * 0.693147], abs=1e-6)


def test_rare_demonstrated_tokens_learn():
    now = of(0.01, 0.1, 0.5, 1).log().requires_grad_()
    found = shaped_demonstration(now, of(1, 1, 1, 1))
    found.loss.sum().backward()
    assert (-found.loss).tolist() == pytest.approx([0.090909, 0.5, 0.833333, 0.909091], abs=1e-6)
    assert (-now.grad).tolist() == pytest.approx([0.082645, 0.25, 0.138889, 0.082645], abs=1e-6)


def test_weights_by_entropy():
    found = entropy_weights(of(0.4, 0.4, 0.4), of(0, 1, -1), of(1, 0, 0))
    assert found.tolist() == pytest.approx([0.335160, 0.745912, 1], abs=1e-6)
    # one's own token without credit is no success
    assert entropy_weights(of(0.4), of(0), of(0)).tolist() == [1]
    assert not entropy_weights(of(0.4).requires_grad_(), of(1), of(0)).requires_grad


def test_rare_demonstrated_tokens_say_how_likely_they_are():
    now = of(0.01, 0.1).log().requires_grad_()
    found = shaped_demonstration(now, of(1, 1)).metrics
    assert list(found) == ["policy/token_probability"]
    assert found["policy/token_probability"].tolist() == pytest.approx([0.01, 0.1])
    assert not found["policy/token_probability"].requires_grad
    with pytest.raises(ValueError, match="per token"):
        shaped_demonstration(now, of(1))


def test_another_sharpness_is_where_tokens_learn_most():
    # γ x / (x + γ)² at γ = ½: x .5: ¼ / 1, x .1: .05 / .36
    now = of(0.5, 0.1).log().requires_grad_()
    shaped_demonstration(now, of(1, 1), sharpness=0.5).loss.sum().backward()
    assert (-now.grad).tolist() == pytest.approx([0.25, 0.05 / 0.36])
