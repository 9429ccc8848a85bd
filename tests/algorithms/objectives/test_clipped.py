import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whetstone.algorithms import clipped

RATIOS = torch.tensor([1.5, 1.25, 0.7, 1.5, 0.7, 4.0, 1.0], dtype=torch.float64)
ADVANTAGES = torch.tensor([1, 1, 1, -1, -1, -1, 1], dtype=torch.float64)


def at(ratios, advantages, **clips):
    old = torch.full_like(ratios, -1.0)
    learner = (old + ratios.log()).requires_grad_()
    result = clipped(learner, old, advantages, **clips)
    (gradient,) = torch.autograd.grad(result.loss.sum(), learner)
    return result, gradient


def test_worked_numbers():
    result, gradient = at(RATIOS, ADVANTAGES)
    assert torch.allclose(result.loss, torch.tensor([-1.2, -1.2, -0.7, 1.5, 0.8, 4, -1]).double(), atol=1e-5)
    assert torch.allclose(gradient, torch.tensor([0, 0, -0.7, 1.5, 0, 4, -1]).double(), atol=1e-5)
    assert result.metrics["policy/clip_fraction"].mean().item() == pytest.approx(3 / 7)


def test_worked_numbers_of_clip_higher():
    result, gradient = at(RATIOS, ADVANTAGES, clip_high=0.28)
    assert torch.allclose(result.loss, torch.tensor([-1.28, -1.25, -0.7, 1.5, 0.8, 4, -1]).double(), atol=1e-5)
    assert torch.allclose(gradient, torch.tensor([0, -1.25, -0.7, 1.5, 0, 4, -1]).double(), atol=1e-5)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6))
def test_gradient_at_ratio_one_is_minus_the_advantage(advantages):
    a = torch.tensor(advantages, dtype=torch.float64)
    _, gradient = at(torch.ones_like(a), a)
    assert torch.allclose(gradient, -a)


@given(st.lists(st.floats(0.05, 20), min_size=1, max_size=6))
def test_zero_advantage_gives_zero_loss_and_gradient(ratios):
    r = torch.tensor(ratios, dtype=torch.float64)
    result, gradient = at(r, torch.zeros_like(r))
    assert (result.loss == 0).all()
    assert (gradient == 0).all()


@given(st.lists(st.floats(0.05, 20), min_size=1, max_size=6), st.sampled_from([-1.0, 1.0]))
def test_wide_clips_give_the_plain_policy_gradient(ratios, sign):
    r = torch.tensor(ratios, dtype=torch.float64)
    result, gradient = at(r, torch.full_like(r, sign), clip_low=1.0, clip_high=1e9)
    assert torch.allclose(result.loss, -sign * r)
    assert torch.allclose(gradient, -sign * r)


def test_extreme_log_probs_stay_finite():
    learner = torch.tensor([-1e4, 0.0], requires_grad=True)
    result = clipped(learner, torch.tensor([0.0, -1e4]), torch.tensor([1.0, -1.0]))
    result.loss.sum().backward()
    assert torch.isfinite(result.loss).all()
    assert torch.isfinite(learner.grad).all()


def test_the_kl_metric_is_zero_at_ratio_one_and_never_negative():
    result, _ = at(RATIOS, ADVANTAGES)
    assert (result.metrics["policy/update_kl"] >= 0).all()
    assert result.metrics["policy/update_kl"][-1].item() == 0
    assert result.metrics["policy/update_kl"][0].item() == pytest.approx(0.5 - math.log(1.5))


def test_invalid_shapes_and_clips_are_refused():
    x = torch.zeros(2)
    with pytest.raises(ValueError, match="must have the same shape"):
        clipped(x, x, torch.zeros(3))
    with pytest.raises(ValueError, match=r"clip_low must be in \[0, 1\]"):
        clipped(x, x, x, clip_low=1.5)


BATCH = [1.5, 1.25, 0.7, 1.5, 0.7, 4, 1], [1, 1, 1, -1, -1, -1, 1]


def values_and_gradients(**options):
    ratios, advantages = (torch.tensor(x, dtype=torch.float64) for x in BATCH)
    learner = ratios.log().requires_grad_()
    result = clipped(learner, torch.zeros_like(ratios), advantages, **options)
    result.loss.sum().backward()
    return result.loss.tolist(), learner.grad.tolist(), result.metrics


def test_clip_higher_on_the_example_batch():
    values, gradients, _ = values_and_gradients(clip_high=0.28)
    assert values == pytest.approx([-1.28, -1.25, -0.7, 1.5, 0.8, 4, -1])
    assert gradients == pytest.approx([0, -1.25, -0.7, 1.5, 0, 4, -1])


def test_dual_clip_bounds_negative_advantages_at_high_ratios():
    values, gradients, metrics = values_and_gradients(clip_high=0.28, dual_clip=3.0)
    assert values == pytest.approx([-1.28, -1.25, -0.7, 1.5, 0.8, 3, -1])
    assert gradients == pytest.approx([0, -1.25, -0.7, 1.5, 0, 0, -1])
    assert metrics["policy/dual_clip_fraction"].tolist() == [0, 0, 0, 0, 0, 1, 0]
    assert metrics["policy/clip_low_fraction"].tolist() == [0, 0, 0, 0, 1, 0, 0]
    assert metrics["policy/clip_high_fraction"].tolist() == [1, 0, 0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="dual_clip must be above"):
        values_and_gradients(dual_clip=1.1)
