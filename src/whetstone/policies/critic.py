"""Critic: linear value heads on the hidden states of a policy, one per quantity to predict.

Note:
    Two critics with equal initial weights and equal training are one critic. The second of a pair starts with slightly
    different weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_SPREAD = 0.02
"""Standard deviation of the initial weights of a twin head."""


class Critic(torch.nn.Module):
    """Value heads: linear functions of the states that a policy's output layer reads, one column per head.

    Heads start at 0. A head whose name starts with `twin_`, or ends with the number of an ensemble member (`values#2`),
    starts with small random weights. A head whose name starts with `slow_` is a target network: an untrained copy of
    the head named after the prefix, which follows it slowly (`update_targets`).

    Args:
        hidden: Hidden size of the policy.
        heads: Names of the heads.
        detached: Whether the gradient stops before the hidden states.
        probabilities: Whether values are probabilities: a sigmoid is applied to the output of the heads.
        learning_rate: Learning rate of the heads' optimizer.
    """

    def __init__(
        self,
        hidden: int,
        heads: Sequence[str] = ("values",),
        *,
        detached: bool = True,
        probabilities: bool = False,
        learning_rate: float = 1e-2,
    ) -> None:
        super().__init__()
        self.detached, self.probabilities, self.learning_rate = detached, probabilities, learning_rate
        self.trained = tuple(head for head in heads if not head.startswith("slow_"))
        self.slow = tuple(head for head in heads if head.startswith("slow_"))
        self.value = torch.nn.Linear(hidden, len(self.trained))
        torch.nn.init.zeros_(self.value.weight)
        torch.nn.init.zeros_(self.value.bias)
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for k, head in enumerate(self.trained):
                if head.startswith("twin_") or "#" in head:
                    self.value.weight[k] = torch.randn(hidden, generator=draw) * _SPREAD
        follows = [self.trained.index(head.removeprefix("slow_")) for head in self.slow]
        self.follows = follows
        self.register_buffer("slow_weight", self.value.weight.detach()[follows].clone())
        self.register_buffer("slow_bias", self.value.bias.detach()[follows].clone())

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the value columns: trained heads, then target networks."""
        return (*self.trained, *self.slow)

    def forward(self, states: Tensor) -> Tensor:
        """Compute [R, heads] values of [R, hidden] states."""
        states = states.to(self.value.weight.dtype)
        values: Tensor = self.value(states.detach() if self.detached else states)
        if self.slow:
            slow_values = torch.nn.functional.linear(states.detach(), self.slow_weight, self.slow_bias)  # type: ignore[arg-type]
            values = torch.cat([values, slow_values], 1)
        return values.sigmoid() if self.probabilities else values

    def to_saved_state(self) -> dict[str, Any]:
        """Return the settings and weights from which `restore_critic` restores the critic."""
        options: dict[str, Any] = {"detached": self.detached, "probabilities": self.probabilities}
        options["learning_rate"] = self.learning_rate
        return {"heads": list(self.heads), **options, "state": self.state_dict()}

    @torch.no_grad()
    def update_targets(self, rate: float) -> None:
        """Update target networks by Polyak averaging: θ̄ ← τ θ + (1 − τ) θ̄.

        Args:
            rate: τ, in [0, 1].
        """
        if self.slow:
            self.slow_weight.lerp_(self.value.weight[self.follows], rate)  # type: ignore[operator]
            self.slow_bias.lerp_(self.value.bias[self.follows], rate)  # type: ignore[operator]


def restore_critic(model: torch.nn.Module, saved: dict[str, Any]) -> Critic:
    """Create a critic from its saved state.

    Args:
        model: Model whose hidden states the critic reads.
        saved: Return value of `Critic.to_saved_state`.
    """
    options = {name: saved[name] for name in ("detached", "probabilities", "learning_rate")}
    critic = build_critic(model, saved["heads"], **options)
    critic.load_state_dict(saved["state"])
    return critic


def build_critic(
    model: torch.nn.Module,
    heads: Sequence[str] = ("values",),
    *,
    detached: bool = True,
    probabilities: bool = False,
    learning_rate: float = 1e-2,
) -> Critic:
    """Create a critic for the hidden states of a model, on the model's device.

    Args:
        model: Transformers causal language model.
        heads: Names of the heads; see `Critic`.
        detached: Whether the gradient stops before the hidden states.
        probabilities: Whether values are probabilities.
        learning_rate: Learning rate of the heads' optimizer.
    """
    anything: Any = model
    hidden = int(anything.config.get_text_config().hidden_size)
    critic = Critic(hidden, heads, detached=detached, probabilities=probabilities, learning_rate=learning_rate)
    return critic.to(next(model.parameters()).device)
