"""How does an optimiser that looks at whole matrices step where each rank has some rows? One rank steps for all.

Each matrix in turn is gathered with its gradient and momentum, stepped by `Muon` on one rank, another for
each, and every rank keeps its rows of what came of it.

Easy to get wrong: stepping each rank's rows by themselves makes those orthogonal, and not the matrix.

Source: Liu et al. 2025, arXiv:2502.16982, section 2.3 (gather, compute, and keep the own part).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from whetstone.learning.muon import Muon
from whetstone.scaling.learners.sharding import part_like, put, whole

_MOMENTUM = "momentum_buffer"
"""What PyTorch's Muon calls what it remembers."""


class DividedMuon(Muon):
    """`Muon` of matrices that are divided between ranks; all ranks step together."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step from the gradients at hand."""
        number = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, group, by=number % dist.get_world_size())
                    number += 1
        return None

    def _step(self, parameter: Tensor, group: dict[str, Any], *, by: int) -> None:
        remembered: Tensor | None = self.state[parameter].get(_MOMENTUM)
        matrix = torch.nn.Parameter(whole(parameter).clone())
        matrix.grad = whole(parameter.grad)  # type: ignore[arg-type]
        momentum = torch.zeros_like(matrix.data) if remembered is None else whole(remembered)
        if dist.get_rank() == by:
            options = {name: value for name, value in group.items() if name != "params"}
            alone = Muon([matrix], **options)
            alone.state[matrix][_MOMENTUM] = momentum
            alone.step()
        dist.broadcast(matrix.data, src=by)
        dist.broadcast(momentum, src=by)
        put(parameter, matrix.data)
        self.state[parameter][_MOMENTUM] = part_like(momentum, parameter)
