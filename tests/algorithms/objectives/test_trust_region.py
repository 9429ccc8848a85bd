"""Trust region by differences of probabilities."""

import pytest

from support.batches import of
from whetstone.algorithms.objectives import probability_difference


def test_worked_numbers():
    now = of(0.95, 0.02, 0.3, 0.3).log().requires_grad_()
    result = probability_difference(now, of(0.7, 0.005, 0.55, 0.55).log(), of(1, 1, -1, 1))
    result.loss.sum().backward()
    assert result.loss.tolist() == pytest.approx([0.000093, -3.998078, 0.000367, -0.545087], abs=1e-6)
    assert now.grad.tolist() == pytest.approx([0.000611, -3.997227, -0.001212, -0.546667], abs=1e-6)
    assert result.metrics["policy/clip_fraction"].tolist() == [1, 0, 1, 0]


def test_unsampled_token_has_ratio_one():
    now = of(-1.0).requires_grad_()
    result = probability_difference(now, of(float("nan")), of(2))
    result.loss.sum().backward()
    assert (result.loss.item(), now.grad.item()) == (-2, -2)


def test_bound_is_inclusive():
    # π 1 and μ ½, and reversed: .5 up with A > 0, .5 down with A < 0
    result = probability_difference(of(1, 0.5).log(), of(0.5, 1).log(), of(1, -1), low=0.5, high=0.5, pull=0.0)
    assert result.loss.tolist() == pytest.approx([-2, 0.5])
    assert result.metrics["policy/clip_fraction"].tolist() == [0, 0]
