"""How is a model divided between ranks? By FSDP2: each layer's parameters by their rows, gathered when it is computed.
Where ranks of a group compute a layer together (`rank_mesh.py`), what each has of it is divided so between groups.

Gradients are summed over ranks, not averaged: an update's loss is a sum over its tokens by a divisor that was counted
over all of them, whoever computes which.

Easy to get wrong: what is gathered is let go behind every pass, the outermost parameters too, or the next pass would
read weights from before an update. And a part of a parameter need not be rows of it: some are cut along both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from whetstone.learning.resources import MOVEMENT_LOOKED_AT, Movement
from whetstone.scaling.learners.rank_mesh import RankMesh


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
    """This rank's part of a divided tensor, which shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def part_like(everything: Tensor, divided: Tensor) -> Tensor:
    """`everything`, divided as another tensor of its shape is. What is divided already, of another shape, or beside one
    that is not divided, stays as it is."""
    if isinstance(everything, DTensor) or not isinstance(divided, DTensor) or everything.shape != divided.shape:
        return everything
    mine = everything[_part(divided)].to(divided.to_local().device, copy=True).contiguous()
    return DTensor.from_local(
        mine, divided.device_mesh, divided.placements, run_check=False, shape=divided.shape, stride=divided.stride()
    )


@torch.no_grad()
def put(parameter: Tensor, everything: Tensor) -> None:
    """Overwrite this rank's part of a parameter."""
    mine = everything[_part(parameter)] if isinstance(parameter, DTensor) else everything
    own_part(parameter).copy_(mine)


def _part(tensor: DTensor) -> tuple[slice, ...]:
    """Which part of the whole this rank has, along each dimension."""
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))


class DividedMovement(Movement):
    """How far an update moves weights that are divided: the same numbers of each tensor that one process looks at.

    Args:
        mesh: The ranks.
    """

    def __init__(self, parameters: Sequence[Tensor], mesh: RankMesh) -> None:
        self._mesh = mesh
        super().__init__(parameters)

    def ratio(self) -> float:
        """‖Δw‖ / ‖w‖ since this was made; all ranks ask together."""
        squares = torch.zeros(2, dtype=torch.float64)
        for parameter, before in zip(self._parameters, self._before, strict=True):
            squares[0] += (self._some(parameter) - before).square().sum().item()
            squares[1] += before.square().sum().item()
        dist.all_reduce(squares)
        return float((squares[0].sqrt() / squares[1].sqrt().clamp_min(1e-12)).item())

    def _some(self, parameter: Tensor) -> Tensor:
        mine = own_part(parameter.detach())
        if not self._mesh.counts(parameter):
            return mine.flatten()[:0]
        if not isinstance(parameter, DTensor):
            return mine.flatten()[:MOVEMENT_LOOKED_AT]
        part = _part(parameter)
        last_row = -(-MOVEMENT_LOOKED_AT // math.prod(parameter.shape[1:]))
        mine = mine[: max(0, last_row - part[0].start)]
        places = torch.zeros((), dtype=torch.long, device=mine.device)  # of each number, in the whole
        for along, here, size in zip(part, mine.shape, parameter.shape, strict=True):
            places = places.unsqueeze(-1) * size + torch.arange(along.start, along.start + here, device=mine.device)
        return mine[places < MOVEMENT_LOOKED_AT]


@torch.no_grad()
def clipped_norm(parameters: Sequence[torch.nn.Parameter], most: float, mesh: RankMesh) -> float:
    """The norm of the gradient of all ranks, cut to `most`; all ranks ask together.

    PyTorch's own takes no tensors that are divided in different ways. What is left where a norm is not finite is not
    applied.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    counted = [torch.linalg.vector_norm(own_part(each)) for each in gradients if mesh.counts(each)]
    square = torch.stack(counted).double().square().sum().cpu() if counted else torch.zeros((), dtype=torch.float64)
    dist.all_reduce(square)
    norm = float(square.sqrt())
    for each in gradients:
        own_part(each).mul_(min(1.0, most / (norm + 1e-6)))
    return norm
