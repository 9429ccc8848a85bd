"""What turns gradients into steps? AdamW, or Muon for the matrices inside the model with AdamW for the rest.

Easy to get wrong: Muon is for matrices that map hidden states to hidden states. Embeddings, the output
layer and gains are left to AdamW, as its authors say.

Source: Loshchilov and Hutter 2019, arXiv:1711.05101 (AdamW); Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/,
with the step size matched to AdamW's as in Liu et al. 2025, arXiv:2502.16982 (both as in torch.optim).
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from whetstone.errors import RecipeError
from whetstone.extras import install_command
from whetstone.learning.muon import Muon
from whetstone.policies import Policy, fast_dtype
from whetstone.recipe import OptimizerSettings

_OUTER_SHARE = 0.3
"""Beside Muon, AdamW's share of the learning rate: at the same rate embeddings are torn about (measured on the
demo's warm-up: success after 150 steps 1 % at a share of 1, 50 % at 0.3)."""


_BETAS = (0.9, 0.95)
_SHARDED = "whetstone.learning.sharded_state"
SHARDS = "shards"
"""In a saved state, the folder of what several processes wrote of it, each its own; absent where one wrote it all."""


class Optimizers:
    """The optimiser of a stage, its schedule, and its state as one thing to save.

    Args:
        of_matrices: What stands for Muon; it has its options.
    """

    def __init__(
        self, policy: Policy, settings: OptimizerSettings, *, of_matrices: Callable[..., Optimizer] = Muon
    ) -> None:
        self.settings, self.done = settings, 0
        self.share = 0.0
        """How much of the stage's budget is used up."""
        self.critic_only = False
        """Whether an update leaves the policy, its momentum too, as it is."""
        parameters, outside = policy.trained(), policy.outside
        offloads = settings.optimizer_offload and policy.device.type != "cpu"
        self._kept = {p: _kept_copy(p) for p in parameters} if offloads else {}
        """By parameter on a device, the copy on the CPU that is updated in its place."""
        inner = [
            p for p in parameters if p.ndim == 2 and id(p) not in outside and settings.optimizer.startswith("muon")
        ]
        taken = {id(p) for p in inner}
        critic = [p for p in policy.critic.parameters() if p.requires_grad] if policy.critic is not None else []
        taken |= {id(p) for p in critic}
        rest = [p for p in parameters if id(p) not in taken]
        rate, decay = settings.learning_rate, settings.weight_decay
        self._optimizers: list[Optimizer] = []
        if rest:
            outer = rate * _OUTER_SHARE if inner else rate
            rest = self._updated(rest)
            of_groups = _decaying(rest) if decay else rest
            self._optimizers.append(_adamw(settings.optimizer)(of_groups, lr=outer, betas=_BETAS, weight_decay=decay))
        if inner:
            matrices = self._updated(inner)
            options = {"lr": rate, "weight_decay": decay, "adjust_lr_fn": "match_rms_adamw"}
            dtype = iteration_dtype(settings.optimizer, matrices[0].device)
            self._optimizers.append(of_matrices(matrices, iteration_dtype=dtype, **options))
        if policy.critic is not None:
            critic = self._updated(critic)
            self._optimizers.append(AdamW(critic, lr=policy.critic.learning_rate, betas=_BETAS, weight_decay=0.0))
        self._peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in self._optimizers]

    @property
    def place(self) -> float:
        """How far along the stage is, in steps: by its steps or by its budget, whichever ends it first."""
        return max(self.done, min(1.0, self.share) * self.settings.steps)

    @property
    def each(self) -> Sequence[Optimizer]:
        """Of the matrices, of the rest, of critics; as many of them as there are."""
        return self._optimizers

    def rate(self) -> float:
        """The learning rate of the next step."""
        return rate_after(self.place, self.settings)

    def update(self) -> None:
        """One update from the gradients at hand, at the schedule's present rate."""
        for parameter, copy in self._kept.items():
            copy.grad = parameter.grad.to(copy.device) if parameter.grad is not None else None
        factor = self.rate() / self.settings.learning_rate
        kept = len(self._optimizers) - 1 if self.critic_only else 0  # the critic's stands last
        for optimizer, peaks in zip(self._optimizers[kept:], self._peaks[kept:], strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            optimizer.step()
        with torch.no_grad():
            for parameter, copy in self._kept.items():
                parameter.copy_(copy)
                copy.grad = None

    def _updated(self, parameters: Sequence[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
        """What an optimiser changes in the place of these: themselves, or their copies."""
        return [self._kept.get(p, p) for p in parameters]

    def advance(self) -> None:
        """A training step is over; it may have held several updates or none."""
        self.done += 1

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what comes next."""
        return {
            "done": self.done,
            "share": self.share,
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.done, self.share = state["done"], state.get("share", 0.0)
        saved = state["optimizers"]
        if state.get(SHARDS) is not None:
            sharded = importlib.import_module(_SHARDED)  # most runs never need what it stands on
            saved = sharded.read_shards(Path(state[SHARDS]), self._optimizers, saved)
        for optimizer, each in zip(self._optimizers, saved, strict=True):
            optimizer.load_state_dict(each)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Weights were put there by somebody else: what is kept of them elsewhere follows."""
        for parameter, copy in self._kept.items():
            copy.copy_(parameter)


def rate_after(done: float, settings: OptimizerSettings) -> float:
    """Return the learning rate of the step after `done` steps of a stage."""
    return settings.learning_rate * schedule(
        done,
        settings.steps,
        warmup_fraction=settings.warmup_fraction,
        decay_fraction=settings.decay_fraction,
        decay=settings.decay,
    )


def iteration_dtype(optimizer: str, device: torch.device) -> str:
    """Return the precision of Muon's iteration that `optimizer` names; `muon`: the faster one on the device."""
    return optimizer.removeprefix("muon_") if optimizer != "muon" else str(fast_dtype(device)).removeprefix("torch.")


def _kept_copy(parameter: Tensor) -> torch.nn.Parameter:
    copy = parameter.detach().to("cpu", copy=True)
    return torch.nn.Parameter(copy.pin_memory() if parameter.device.type == "cuda" else copy)


def schedule(done: float, steps: int, *, warmup_fraction: float, decay_fraction: float, decay: str = "linear") -> float:
    """The factor on the learning rate of the step after `done` of `steps`: up, level, and down.

    Level all along is the constant schedule; down all along, the cosine or linear one; level, then down at the
    end, is warm-up-stable-decay. The first step of a warm-up is not 0, and neither is the last of a decay:
    every step moves something.

    Args:
        decay: `linear`, or `cosine`: half a wave.

    Source: cosine: Loshchilov and Hutter 2017, arXiv:1608.03983; level and down: Hu et al. 2024, arXiv:2404.06395.
    """
    warmup, falls = warmup_fraction * steps, decay_fraction * steps
    rising = (done + 1) / (warmup + 1)
    falling = min(1.0, (steps - done) / (falls + 1))
    if decay == "cosine":
        falling = (1 - math.cos(math.pi * falling)) / 2
    return max(0.0, min(1.0, rising, falling))


def _decaying(parameters: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Matrices, which decay, and what does not: a gain that decays turns its layer off."""
    matrices = [p for p in parameters if p.ndim >= 2]
    others = [p for p in parameters if p.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def check_optimizer(settings: OptimizerSettings) -> None:
    """See that an optimiser can be had.

    Raises:
        RecipeError: Its package is not installed, or it does not compute where it is to.
    """
    if settings.optimizer == "adamw_8bit" and settings.optimizer_offload:
        raise RecipeError("adamw_8bit computes on a GPU; with optimizer_offload: true, adamw or muon")
    _adamw(settings.optimizer)


def _adamw(name: str) -> Callable[..., Optimizer]:
    if name != "adamw_8bit":
        return functools.partial(AdamW, fused=True)
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        raise RecipeError(f"adamw_8bit needs bitsandbytes: {install_command('gpu')}") from error
    return AdamW8bit  # type: ignore[no-any-return]
