import math

import pytest
import torch

from whetstone.algorithms import mismatch_metrics


def test_worked_numbers():
    # d = ln 2 and 0: mean ½ ln 2, k3 = (2 − 1 − ln 2)/2
    metrics = mismatch_metrics(torch.tensor([math.log(0.5), -1.0]), torch.tensor([math.log(0.25), -1.0]))
    assert metrics["sampler/mismatch_mean"] == pytest.approx(math.log(2) / 2)
    assert metrics["sampler/mismatch_max"] == pytest.approx(math.log(2))
    assert metrics["sampler/mismatch_kl"] == pytest.approx((1 - math.log(2)) / 2)


def test_no_tokens_give_zero_metrics():
    nothing = mismatch_metrics(torch.zeros(0), torch.zeros(0))
    assert nothing == mismatch_metrics(torch.zeros(1), torch.zeros(1))
    assert set(nothing.values()) == {0.0}


def test_log_ratios_are_clipped_at_twenty_nats_and_divergences_at_ten():
    for learner, sampler in ((-50.0, -1.0), (-1.0, -50.0)):
        metrics = mismatch_metrics(torch.tensor([learner, -1.0]), torch.tensor([sampler, -1.0]))
        assert (metrics["sampler/mismatch_mean"], metrics["sampler/mismatch_max"]) == (10.0, 20.0)
    assert metrics["sampler/mismatch_kl"] == 5.0
