"""Heads on hidden states: where they begin, and slow copies that follow."""

import pytest
import torch

from whetstone.policies import Critic


def test_heads_begin_at_nothing_and_twins_a_little_off():
    critic = Critic(8, ("values", "twin_values"))
    said = critic(torch.ones(3, 8))
    assert said.shape == (3, 2)
    assert (said[:, 0] == 0).all()
    assert (said[:, 1] != 0).all()
    again = Critic(8, ("values", "twin_values"))
    assert torch.equal(again.value.weight, critic.value.weight)


def test_slow_copies_follow_and_are_not_trained():
    critic = Critic(1, ("values", "slow_values"))
    critic.slow_weight.fill_(0.5)
    with torch.no_grad():
        critic.value.weight.fill_(0.8)
    critic.follow(0.1)
    assert critic(torch.ones(1, 1)).tolist() == [pytest.approx([0.8, 0.53])]
    assert {name for name, _ in critic.named_parameters()} == {"value.weight", "value.bias"}


def test_probabilities_and_the_gradient_in_front_of_states():
    states = torch.ones(1, 4, requires_grad=True)
    assert Critic(4, probabilities=True)(states).item() == 0.5
    (through,) = torch.autograd.grad(Critic(4, ("twin_values",), detached=False)(states).sum(), states)
    assert through.abs().sum() > 0
    stopped = Critic(4, ("twin_values",))(states)
    assert torch.autograd.grad(stopped.sum(), states, allow_unused=True) == (None,)
