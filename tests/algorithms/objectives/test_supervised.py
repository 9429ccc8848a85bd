import torch

from whetstone.algorithms import supervised


def test_worked_numbers():
    # ℓ = −1 and −0.25: mean loss 0.625
    logprobs = torch.tensor([-1.0, -0.25], requires_grad=True)
    result = supervised(logprobs)
    assert result.loss.mean().item() == 0.625
    result.loss.sum().backward()
    assert logprobs.grad.tolist() == [-1.0, -1.0]
    assert torch.allclose(result.metrics["policy/likelihood"], torch.tensor([0.367879, 0.778801]), atol=1e-5)
