"""Mixtures of supervised and reinforcement losses."""

import pytest

from support.batches import of
from whetstone.algorithms.objectives import entropy_weights, mix_losses, shaped_demonstration, supervised


def test_losses_are_mixed_after_separate_means():
    assert mix_losses(of(0.2), of(1.6), 0.475).item() == pytest.approx(0.865)
    assert mix_losses(of(0.2), of(1.6), 0.0).item() == 0.2


def test_both_ways_weight_prefers_tokens_of_medium_probability():
    result = supervised(of(0.05, 0.5, 0.95).log(), weigh="both_ways")
    assert result.loss.mean().item() == pytest.approx(0.106007, abs=1e-6)
    assert supervised(of(0.05, 0.5, 0.95).log()).loss.mean().item() == pytest.approx(1.246724, abs=1e-6)
    # p (1 − p) of .01 and .5: .0099 and .25, each times −log p
    rare = supervised(of(0.01, 0.5).log(), weigh="both_ways").loss
    assert rare.tolist() == pytest.approx([0.0099 * 4.605170, 0.25 * 0.693147], abs=1e-6)


def test_shaped_demonstration_has_a_gradient_on_rare_tokens():
    now = of(0.01, 0.1, 0.5, 1).log().requires_grad_()
    loss = shaped_demonstration(now, of(1, 1, 1, 1))
    loss.loss.sum().backward()
    assert (-loss.loss).tolist() == pytest.approx([0.090909, 0.5, 0.833333, 0.909091], abs=1e-6)
    assert (-now.grad).tolist() == pytest.approx([0.082645, 0.25, 0.138889, 0.082645], abs=1e-6)


def test_worked_numbers_of_entropy_weights():
    result = entropy_weights(of(0.4, 0.4, 0.4), of(0, 1, -1), of(1, 0, 0))
    assert result.tolist() == pytest.approx([0.335160, 0.745912, 1], abs=1e-6)
    # a sampled token with zero advantage is not a success
    assert entropy_weights(of(0.4), of(0), of(0)).tolist() == [1]
    assert not entropy_weights(of(0.4).requires_grad_(), of(1), of(0)).requires_grad


def test_shaped_demonstration_reports_the_token_probability():
    now = of(0.01, 0.1).log().requires_grad_()
    result = shaped_demonstration(now, of(1, 1)).metrics
    assert list(result) == ["policy/token_probability"]
    assert result["policy/token_probability"].tolist() == pytest.approx([0.01, 0.1])
    assert not result["policy/token_probability"].requires_grad
    with pytest.raises(ValueError, match="columns must have the same shape"):
        shaped_demonstration(now, of(1))


def test_sharpness_is_the_probability_of_the_largest_gradient():
    # γ x / (x + γ)² at γ = ½: x .5: ¼ / 1, x .1: .05 / .36
    now = of(0.5, 0.1).log().requires_grad_()
    shaped_demonstration(now, of(1, 1), sharpness=0.5).loss.sum().backward()
    assert (-now.grad).tolist() == pytest.approx([0.25, 0.05 / 0.36])
