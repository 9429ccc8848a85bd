"""Tests of the estimator and the loss: worked numbers and properties."""

import torch
from starter_method import clamped, relative


def test_advantages_of_a_group_are_the_distances_from_its_mean() -> None:
    # task 0: mean(1, 0) = 0.5; task 1: a single trajectory
    result = relative(torch.tensor([1.0, 0.0, 7.0]), torch.tensor([0, 0, 1]))
    assert result.tolist() == [0.5, -0.5, 0.0]


def test_constant_reward_changes_no_advantage() -> None:
    rewards, group = torch.rand(12, dtype=torch.float64), torch.arange(12) % 3
    assert torch.allclose(relative(rewards + 7, group), relative(rewards, group))


def test_loss_at_the_old_policy_is_the_negative_advantage() -> None:
    logprobs, advantages = torch.tensor([-1.0, -2.0]), torch.tensor([1.0, -0.5])
    assert clamped(logprobs, logprobs, advantages).loss.tolist() == [-1.0, 0.5]


def test_gradient_is_that_of_the_policy_gradient_and_0_beyond_the_limit() -> None:
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    old = torch.tensor([-1.0, -3.0])  # the second ratio is exp(2)
    clamped(logprobs, old, torch.tensor([1.0, 1.0])).loss.sum().backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-1.0, 0.0]
