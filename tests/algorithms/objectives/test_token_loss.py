"""Functions that objectives with a ratio share."""

import pytest
import torch

from support.batches import of
from whetstone.algorithms.objectives.token_loss import log_ratio, ratio_metrics, same_length


def test_clipped_log_ratios_have_no_gradient():
    learner = of(-1e4, -1.0).requires_grad_()
    ratios = log_ratio(learner, of(-1.0, -1.5))
    assert ratios.tolist() == [-20, 0.5]
    ratios.sum().backward()
    assert learner.grad.tolist() == [0, 1]


def test_ratio_metrics_per_token():
    metrics = ratio_metrics(of(0, 0.5, -20), marked_fraction=torch.tensor([True, False, False]))
    assert metrics["policy/update_kl"].tolist() == pytest.approx([0, 2.718281828**0.5 - 1.5, 10], abs=1e-6)
    assert metrics["policy/log_ratio_clamped_fraction"].tolist() == [0, 0, 1]
    assert metrics["policy/marked_fraction"].tolist() == [1, 0, 0]


def test_columns_of_different_lengths_are_refused():
    same_length(of(1), of(2))
    with pytest.raises(ValueError, match=r"must have the same shape, got \[\[1\], \[2\]\]"):
        same_length(of(1), of(1, 2))
    with pytest.raises(ValueError, match=r"must have the same shape, got \[\[1\], \[2\]\]"):
        log_ratio(of(1), of(1, 2))
