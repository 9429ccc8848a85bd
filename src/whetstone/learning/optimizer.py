"""Optimizers and learning rate schedule: AdamW, or Muon for hidden matrices with AdamW for the rest.

Note:
    Muon is for matrices that map hidden states to hidden states. Embeddings, the output layer and gains are trained
    with AdamW, as its authors recommend.

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
from whetstone.learning.muon import Muon
from whetstone.optional_dependencies import install_command
from whetstone.policies import Policy, fast_dtype
from whetstone.recipe import OptimizerSettings

_OUTER_SHARE = 0.3
"""Factor of AdamW's learning rate if it is used with Muon. At the full rate embeddings become unstable (measured on the
demo's warm-up: success after 150 steps is 1 % at a factor of 1, 50 % at 0.3)."""


_BETAS = (0.9, 0.95)
_SHARDED = "whetstone.learning.sharded_state"
SHARDS = "shards"
"""Key of a saved state: the folder with the shards that several processes wrote; absent if one process wrote the whole
state."""


class Optimizers:
    """Optimizers of a stage, with their learning rate schedule and their state for checkpoints.

    Args:
        policy: Policy whose trainable parameters are optimized.
        settings: Optimizer, learning rate and schedule of the stage.
        of_matrices: Optimizer class used instead of Muon, with the same options.
    """

    def __init__(
        self, policy: Policy, settings: OptimizerSettings, *, of_matrices: Callable[..., Optimizer] = Muon
    ) -> None:
        self.settings, self.done = settings, 0
        self.share = 0.0
        """Fraction of the stage's budget that is used, from 0 to 1."""
        self.rate_scale = 1.0
        """Factor of the policy's learning rate in the next update (`reinforcement.full_rate_groups`)."""
        self.critic_only = False
        """Whether an update changes only critics, and neither the policy nor its momentum."""
        parameters, outside = policy.trainable_parameters(), policy.non_body_parameters
        offloads = settings.optimizer_offload and policy.device.type != "cpu"
        self._kept = {p: _kept_copy(p) for p in parameters} if offloads else {}
        """CPU copy that is updated instead of a parameter, by parameter on a device."""
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
        self._critic: Optimizer | None = None
        if policy.critic is not None:
            critic = self._updated(critic)
            self._critic = AdamW(critic, lr=policy.critic.learning_rate, betas=_BETAS, weight_decay=0.0)
            self._optimizers.append(self._critic)
        self._peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in self._optimizers]

    @property
    def place(self) -> float:
        """Progress of the stage in steps, by its steps or its budget, whichever ends it first."""
        return max(self.done, min(1.0, self.share) * self.settings.steps)

    @property
    def all_optimizers(self) -> Sequence[Optimizer]:
        """Optimizers of matrices, other parameters and critics, as far as they exist."""
        return self._optimizers

    def rate(self) -> float:
        """Return the learning rate of the policy in the next update."""
        return rate_after(self.place, self.settings) * self.rate_scale

    def update(self) -> None:
        """Make one optimizer step from the accumulated gradients, at the scheduled learning rate."""
        for parameter, copy in self._kept.items():
            copy.grad = parameter.grad.to(copy.device) if parameter.grad is not None else None
        scheduled = rate_after(self.place, self.settings) / self.settings.learning_rate
        first = len(self._optimizers) - 1 if self.critic_only else 0  # the critic's is the last one
        for optimizer, peaks in zip(self._optimizers[first:], self._peaks[first:], strict=True):
            factor = scheduled if optimizer is self._critic else scheduled * self.rate_scale
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            optimizer.step()
        with torch.no_grad():
            for parameter, copy in self._kept.items():
                parameter.copy_(copy)
                copy.grad = None

    def _updated(self, parameters: Sequence[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
        """Return the parameters that an optimizer changes: the given ones, or their CPU copies."""
        return [self._kept.get(p, p) for p in parameters]

    def advance(self) -> None:
        """Advance the schedule by one training step, which may have had several updates or none."""
        self.done += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state that determines the next updates, for a checkpoint."""
        return {
            "done": self.done,
            "share": self.share,
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.done, self.share = state["done"], state.get("share", 0.0)
        saved = state["optimizers"]
        if state.get(SHARDS) is not None:
            sharded = importlib.import_module(_SHARDED)  # most runs never need its imports
            saved = sharded.read_shards(Path(state[SHARDS]), self._optimizers, saved)
        for optimizer, each in zip(self._optimizers, saved, strict=True):
            optimizer.load_state_dict(each)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Update the CPU copies of offloaded parameters after weights were changed elsewhere."""
        for parameter, copy in self._kept.items():
            copy.copy_(parameter)


def rate_after(done: float, settings: OptimizerSettings) -> float:
    """Return the scheduled learning rate of the step after `done` steps of a stage."""
    return settings.learning_rate * schedule_factor(
        done,
        settings.steps,
        warmup_fraction=settings.warmup_fraction,
        decay_fraction=settings.decay_fraction,
        decay=settings.decay,
    )


def iteration_dtype(optimizer: str, device: torch.device) -> str:
    """Return the precision of Muon's iteration that an optimizer name selects.

    `muon` selects the faster precision on the device; `muon_bfloat16` and `muon_float32` name it.
    """
    return optimizer.removeprefix("muon_") if optimizer != "muon" else str(fast_dtype(device)).removeprefix("torch.")


def _kept_copy(parameter: Tensor) -> torch.nn.Parameter:
    copy = parameter.detach().to("cpu", copy=True)
    return torch.nn.Parameter(copy.pin_memory() if parameter.device.type == "cuda" else copy)


def schedule_factor(
    done: float, steps: int, *, warmup_fraction: float, decay_fraction: float, decay: str = "linear"
) -> float:
    """Return the factor of the learning rate for warmup, constant phase and decay.

    The constant phase can be empty: decay throughout is the cosine or linear schedule; a decay at the end is
    warmup-stable-decay. Neither the first step of a warmup nor the last of a decay has factor 0, so every step changes
    the weights.

    Args:
        done: Number of steps before this one.
        steps: Number of steps of the stage.
        warmup_fraction: Fraction of the steps with a linear increase, in [0, 1].
        decay_fraction: Fraction of the steps with a decrease, in [0, 1].
        decay: Form of the decrease: `linear`, or `cosine` (half a wave).

    Source: cosine: Loshchilov and Hutter 2017, arXiv:1608.03983; warmup-stable-decay: Hu et al. 2024, arXiv:2404.06395.
    """
    warmup, falls = warmup_fraction * steps, decay_fraction * steps
    rising = (done + 1) / (warmup + 1)
    falling = min(1.0, (steps - done) / (falls + 1))
    if decay == "cosine":
        falling = (1 - math.cos(math.pi * falling)) / 2
    return max(0.0, min(1.0, rising, falling))


def _decaying(parameters: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Return parameter groups: matrices with weight decay, and others without, since a decayed gain disables its
    layer."""
    matrices = [p for p in parameters if p.ndim >= 2]
    others = [p for p in parameters if p.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def check_optimizer(settings: OptimizerSettings) -> None:
    """Check that the optimizer of a stage is available.

    Raises:
        RecipeError: If its package is not installed, or it does not support the device.
    """
    if settings.optimizer == "adamw_8bit" and settings.optimizer_offload:
        raise RecipeError("adamw_8bit computes on a GPU; with optimizer_offload: true, use adamw or muon")
    _adamw(settings.optimizer)


def _adamw(name: str) -> Callable[..., Optimizer]:
    if name != "adamw_8bit":
        return functools.partial(AdamW, fused=True)
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        raise RecipeError(f"adamw_8bit needs bitsandbytes: {install_command('gpu')}") from error
    return AdamW8bit  # type: ignore[no-any-return]
