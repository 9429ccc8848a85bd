import math

import pytest
import torch

from whetstone.algorithms import supervised


def test_worked_numbers():
    # ℓ = −1 and −0.25: mean loss 0.625
    logprobs = torch.tensor([-1.0, -0.25], requires_grad=True)
    result = supervised(logprobs)
    assert result.loss.mean().item() == 0.625
    result.loss.sum().backward()
    assert logprobs.grad.tolist() == [-1.0, -1.0]
    assert torch.allclose(result.metrics["policy/token_probability"], torch.tensor([0.367879, 0.778801]), atol=1e-5)


def test_token_weights_have_no_gradient():
    # p ½ and ¼: slopes −p and −p (1 − p)
    for weigh, slopes in (("probability", [-0.5, -0.25]), ("both_ways", [-0.25, -0.1875])):
        logprobs = torch.tensor([0.5, 0.25], dtype=torch.float64).log().requires_grad_()
        result = supervised(logprobs, weigh=weigh)
        result.loss.sum().backward()
        assert logprobs.grad.tolist() == pytest.approx(slopes)
        assert result.loss.tolist() == pytest.approx([-slopes[0] * math.log(2), -slopes[1] * math.log(4)])


def test_unknown_weight_is_refused():
    with pytest.raises(KeyError):
        supervised(torch.tensor([-1.0]), weigh="sqrt")
