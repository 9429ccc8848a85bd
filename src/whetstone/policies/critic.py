"""What is a state worth to this policy? One linear layer on its hidden states, which starts at 0 everywhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Critic(torch.nn.Module):
    """Values from the states a policy's output layer reads.

    Args:
        hidden: Numbers in a state.
        detached: Whether its gradient stops in front of the states.
    """

    def __init__(self, hidden: int, *, detached: bool = True) -> None:
        super().__init__()
        self.detached = detached
        self.value = torch.nn.Linear(hidden, 1)
        torch.nn.init.zeros_(self.value.weight)
        torch.nn.init.zeros_(self.value.bias)

    def forward(self, states: Tensor) -> Tensor:
        """[R, hidden] → [R]"""
        states = states.to(self.value.weight.dtype)
        values: Tensor = self.value(states.detach() if self.detached else states)
        return values.squeeze(-1)


def critic_for(model: torch.nn.Module, *, detached: bool = True) -> Critic:
    """A critic on this model's states."""
    anything: Any = model
    critic = Critic(int(anything.config.get_text_config().hidden_size), detached=detached)
    return critic.to(next(model.parameters()).device)
