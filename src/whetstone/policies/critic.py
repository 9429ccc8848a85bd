"""What is a state worth to this policy? Linear heads on its hidden states, one for each thing to be foretold.

Easy to get wrong: two critics that begin alike and learn alike are one critic. The second of a pair begins
a little off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_SPREAD = 0.02
"""Deviation of a twin's first weights."""


class Critic(torch.nn.Module):
    """Values from the states a policy's output layer reads, one column a head.

    Heads start at 0 everywhere. One whose name begins with `twin_`, or ends with the number of a member of an ensemble
    (`values#2`), starts a little off; one that begins with `slow_` is a copy of the head behind that word that follows
    it slowly and is not trained.

    Args:
        hidden: Numbers in a state.
        heads: Their names.
        detached: Whether its gradient stops in front of the states.
        probabilities: Whether values are probabilities, a sigmoid of what the heads say.
        learning_rate: What an optimiser trains it with.
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
        """The names of its columns: those that are trained, then their slow copies."""
        return (*self.trained, *self.slow)

    def forward(self, states: Tensor) -> Tensor:
        """[R, hidden] → [R, heads]"""
        states = states.to(self.value.weight.dtype)
        said: Tensor = self.value(states.detach() if self.detached else states)
        if self.slow:
            behind = torch.nn.functional.linear(states.detach(), self.slow_weight, self.slow_bias)  # type: ignore[arg-type]
            said = torch.cat([said, behind], 1)
        return said.sigmoid() if self.probabilities else said

    def saved(self) -> dict[str, Any]:
        """Everything that makes it again."""
        options: dict[str, Any] = {"detached": self.detached, "probabilities": self.probabilities}
        options["learning_rate"] = self.learning_rate
        return {"heads": list(self.heads), **options, "state": self.state_dict()}

    @torch.no_grad()
    def follow(self, rate: float) -> None:
        """Let slow copies move toward their heads: θ̄ ← τ θ + (1 − τ) θ̄, τ = `rate`."""
        if self.slow:
            self.slow_weight.lerp_(self.value.weight[self.follows], rate)  # type: ignore[operator]
            self.slow_bias.lerp_(self.value.bias[self.follows], rate)  # type: ignore[operator]


def critic_from(model: torch.nn.Module, saved: dict[str, Any]) -> Critic:
    """The critic that was saved, on this model's states."""
    options = {name: saved[name] for name in ("detached", "probabilities", "learning_rate")}
    critic = critic_for(model, saved["heads"], **options)
    critic.load_state_dict(saved["state"])
    return critic


def critic_for(
    model: torch.nn.Module,
    heads: Sequence[str] = ("values",),
    *,
    detached: bool = True,
    probabilities: bool = False,
    learning_rate: float = 1e-2,
) -> Critic:
    """A critic on this model's states."""
    anything: Any = model
    hidden = int(anything.config.get_text_config().hidden_size)
    critic = Critic(hidden, heads, detached=detached, probabilities=probabilities, learning_rate=learning_rate)
    return critic.to(next(model.parameters()).device)
