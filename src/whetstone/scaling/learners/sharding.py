"""How is a model divided between ranks? By FSDP2: each layer's parameters by their rows, gathered when it is computed.

Gradients are summed over ranks, not averaged: an update's loss is a sum over its tokens by a divisor that was counted
over all of them, whoever computes which.

Easy to get wrong: what is gathered is let go behind every pass, the outermost parameters too, or the next pass would
read weights from before an update.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from whetstone.learning.resources import MOVEMENT_LOOKED_AT, Movement


def divide(module: torch.nn.Module, mesh: DeviceMesh, *, offload: bool = False) -> None:
    """Divide a module's parameters between the ranks of a mesh, layer by layer, in place.

    Args:
        module: Its `forward` is a whole pass.
        offload: Whether parameters, gradients and the optimiser's state are kept on the CPU between passes.
    """
    policy = CPUOffloadPolicy() if offload else OffloadPolicy()
    for part in (*_layers(module), module):
        fully_shard(part, mesh=mesh, reshard_after_forward=True, offload_policy=policy)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo has no sum that is multiplied first


def _layers(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """What a model repeats: the members of the lists of its layers, those of experts inside of them left whole."""
    for part in module.children():
        if isinstance(part, torch.nn.ModuleList):
            yield from (each for each in part if any(True for _ in each.parameters()))
        else:
            yield from _layers(part)


def whole(tensor: Tensor) -> Tensor:
    """All of a divided tensor; all ranks ask for it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_part(tensor: Tensor) -> Tensor:
    """This rank's rows of a divided tensor, which share its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def part_like(everything: Tensor, divided: Tensor) -> Tensor:
    """`everything`, divided as another tensor of its shape is. What is divided already, of another shape, or beside one
    that is not divided, stays as it is."""
    if isinstance(everything, DTensor) or not isinstance(divided, DTensor) or everything.shape != divided.shape:
        return everything
    rows = _rows(divided)
    mine = everything[rows].to(divided.to_local().device, copy=True)
    return DTensor.from_local(
        mine, divided.device_mesh, divided.placements, run_check=False, shape=divided.shape, stride=divided.stride()
    )


@torch.no_grad()
def put(parameter: Tensor, everything: Tensor) -> None:
    """Overwrite this rank's rows of a parameter."""
    mine = everything[_rows(parameter)] if isinstance(parameter, DTensor) else everything
    own_part(parameter).copy_(mine)


def _rows(tensor: DTensor) -> slice:
    """Which rows of the whole this rank has."""
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return slice(offset[0], offset[0] + shape[0])


class DividedMovement(Movement):
    """How far an update moves weights that are divided: the same numbers of each tensor that one process looks at."""

    def ratio(self) -> float:
        """‖Δw‖ / ‖w‖ since this was made; all ranks ask together."""
        squares = torch.zeros(2, dtype=torch.float64)
        for parameter, before in zip(self._parameters, self._before, strict=True):
            squares[0] += (self._some(parameter) - before).square().sum().item()
            squares[1] += before.square().sum().item()
        dist.all_reduce(squares)
        return float((squares[0].sqrt() / squares[1].sqrt().clamp_min(1e-12)).item())

    @staticmethod
    def _some(parameter: Tensor) -> Tensor:
        mine = own_part(parameter.detach()).flatten()
        if not isinstance(parameter, DTensor):
            return mine[:MOVEMENT_LOOKED_AT]
        row = math.prod(parameter.shape[1:])
        return mine[: max(0, MOVEMENT_LOOKED_AT - _rows(parameter).start * row)]


def clipped_norm(parameters: Sequence[torch.nn.Parameter], most: float) -> float:
    """The norm of the gradient of all ranks, cut to `most`; all ranks ask together."""
    norm: Any = torch.nn.utils.clip_grad_norm_(parameters, most)
    return float(whole(norm).item())
