"""Muon for matrices that are sharded over ranks: each matrix is gathered and updated on one rank.

Each matrix in turn is gathered with its gradient and momentum and updated by `Muon` on one rank, a different one for
each. Every rank then stores its rows of the result.

Note:
    Updating each rank's rows separately would orthogonalize the rows of the rank and not the matrix.

Source: Liu et al. 2025, arXiv:2502.16982, section 2.3 (gather, compute, and keep the own part).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from whetstone.learning.muon import Muon
from whetstone.scaling.distributed_learner.sharding import assign_shard, full_tensor, shard_like

_MOMENTUM = "momentum_buffer"
"""Name of the momentum in the state of PyTorch's Muon."""


class DistributedMuon(Muon):
    """Muon optimizer for sharded matrices; all ranks step together."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Make one optimizer step from the accumulated gradients."""
        number = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, group, by=number % dist.get_world_size())
                    number += 1
        return None

    def _step(self, parameter: Tensor, group: dict[str, Any], *, by: int) -> None:
        remembered: Tensor | None = self.state[parameter].get(_MOMENTUM)
        matrix = torch.nn.Parameter(full_tensor(parameter).clone())
        matrix.grad = full_tensor(parameter.grad)  # type: ignore[arg-type]
        momentum = torch.zeros_like(matrix.data) if remembered is None else full_tensor(remembered)
        if dist.get_rank() == by:
            options = {name: value for name, value in group.items() if name != "params"}
            alone = Muon([matrix], **options)
            alone.state[matrix][_MOMENTUM] = momentum
            alone.step()
        dist.broadcast(matrix.data, src=by)
        dist.broadcast(momentum, src=by)
        assign_shard(parameter, matrix.data)
        self.state[parameter][_MOMENTUM] = shard_like(momentum, parameter)
