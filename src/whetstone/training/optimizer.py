"""What turns gradients into steps? AdamW, or Muon for the matrices inside the model with AdamW for the rest.

Easy to get wrong: Muon is for matrices that map hidden states to hidden states. Embeddings, the output
layer and gains are left to AdamW, as its authors say.

Source: Loshchilov and Hutter 2019, arXiv:1711.05101 (AdamW); Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/,
with the step size matched to AdamW's as in Liu et al. 2025, arXiv:2502.16982 (both as in torch.optim).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import AdamW, Muon, Optimizer

from whetstone.recipe import OptimizerSettings

_OUTER_SHARE = 0.3
"""Beside Muon, AdamW's share of the learning rate: at the same rate embeddings are torn about (measured on the
demo's warm-up: success after 150 steps 1 % at a share of 1, 50 % at 0.3)."""


class Optimizers:
    """The optimiser of a stage, its schedule, and its state as one thing to save."""

    def __init__(self, model: torch.nn.Module, settings: OptimizerSettings) -> None:
        self.settings, self.done = settings, 0
        inner, rest = _split(model) if settings.optimizer == "muon" else ([], list(model.parameters()))
        rate, decay = settings.learning_rate, settings.weight_decay
        outer = rate * _OUTER_SHARE if inner else rate
        self._optimizers: list[Optimizer] = [AdamW(rest, lr=outer, betas=(0.9, 0.95), weight_decay=decay)]
        if inner:
            self._optimizers.append(Muon(inner, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
        self._peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in self._optimizers]

    def rate(self) -> float:
        """The learning rate of the next step."""
        return self.settings.learning_rate * schedule(
            self.done,
            self.settings.steps,
            warmup_fraction=self.settings.warmup_fraction,
            decay_fraction=self.settings.decay_fraction,
        )

    def update(self) -> None:
        """One update from the gradients at hand, at the schedule's present rate."""
        factor = self.rate() / self.settings.learning_rate
        for optimizer, peaks in zip(self._optimizers, self._peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            optimizer.step()

    def advance(self) -> None:
        """A training step is over; it may have held several updates or none."""
        self.done += 1

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what comes next."""
        return {"done": self.done, "optimizers": [optimizer.state_dict() for optimizer in self._optimizers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.done = state["done"]
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def schedule(done: int, steps: int, *, warmup_fraction: float, decay_fraction: float) -> float:
    """The factor on the learning rate of the step after `done` of `steps`: up, level, and down in straight lines.

    The first step of a warm-up is not 0, and neither is the last of a decay: every step moves something.
    """
    warmup, decay = warmup_fraction * steps, decay_fraction * steps
    rising = (done + 1) / (warmup + 1)
    falling = (steps - done) / (decay + 1)
    return max(0.0, min(1.0, rising, falling))


def _split(model: torch.nn.Module) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """(matrices inside the model, everything else)"""
    outside = set()
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):  # type: ignore[operator]
        outside |= {id(parameter) for parameter in module.parameters()} if module is not None else set()
    inner = [p for p in model.parameters() if p.ndim == 2 and id(p) not in outside]
    chosen = {id(p) for p in inner}
    return inner, [p for p in model.parameters() if id(p) not in chosen]
