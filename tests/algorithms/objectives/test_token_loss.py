"""What objectives with a ratio share."""

import pytest
import torch

from tests_batches import of
from whetstone.algorithms.objectives.token_loss import log_ratio, ratio_metrics, same_length


def test_log_ratios_are_bounded_and_a_bounded_one_has_no_gradient():
    learner = of(-1e4, -1.0).requires_grad_()
    found = log_ratio(learner, of(-1.0, -1.5))
    assert found.tolist() == [-20, 0.5]
    found.sum().backward()
    assert learner.grad.tolist() == [0, 1]


def test_what_is_reported_of_ratios():
    found = ratio_metrics(of(0, 0.5, -20), marked_fraction=torch.tensor([True, False, False]))
    assert found["policy/update_kl"].tolist() == pytest.approx([0, 2.718281828**0.5 - 1.5, 10], abs=1e-6)
    assert found["policy/log_ratio_clamped_fraction"].tolist() == [0, 0, 1]
    assert found["policy/marked_fraction"].tolist() == [1, 0, 0]


def test_one_of_each_per_token():
    same_length(of(1), of(2))
    with pytest.raises(ValueError, match=r"one old log-prob and one advantage per token: got \[\[1\], \[2\]\]"):
        same_length(of(1), of(1, 2))
    with pytest.raises(ValueError, match=r"one old log-prob and one advantage per token: got \[\[1\], \[2\]\]"):
        log_ratio(of(1), of(1, 2))
