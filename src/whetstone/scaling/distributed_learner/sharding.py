"""Sharding of a model over ranks with FSDP2: each layer's parameters by rows, gathered when it is computed.

If ranks of a group compute a layer together (`rank_mesh.py`), the part of each is sharded between groups.

Gradients are summed over ranks, not averaged: the loss of an update is a sum over its tokens divided by a divisor,
which was counted over the tokens of all ranks.

Note:
    Gathered parameters are released after every pass, including the outermost ones; otherwise the next pass would read
    weights from before an update. A part of a parameter need not be rows: some are cut along both dimensions.
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

from whetstone.learning.flops import MEASURED_NUMBERS, UpdateNorm
from whetstone.scaling.distributed_learner.rank_mesh import RankMesh


def shard_model(module: torch.nn.Module, mesh: DeviceMesh, *, offload: bool = False) -> None:
    """Shard a module's parameters over the ranks of a mesh with FSDP2, layer by layer, in place.

    Args:
        module: Module whose `forward` is a whole pass.
        mesh: Ranks over which the parameters are sharded.
        offload: Whether parameters, gradients and the optimizer state are on the CPU between passes.
    """
    policy = CPUOffloadPolicy() if offload else OffloadPolicy()
    for part in (*_layers(module), module):
        fully_shard(part, mesh=mesh, reshard_after_forward=True, offload_policy=policy)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor


def _layers(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the repeated layers of a model; lists of experts inside a layer are not divided."""
    for part in module.children():
        if isinstance(part, torch.nn.ModuleList):
            yield from (each for each in part if any(True for _ in each.parameters()))
        else:
            yield from _layers(part)


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor; all ranks call it together. A tensor that is not sharded is returned unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor, which shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard_like(everything: Tensor, divided: Tensor) -> Tensor:
    """Return this rank's shard of a full tensor, divided like another tensor of its shape.

    The tensor is returned unchanged if it is already sharded, if the shapes differ, or if the other tensor is not
    sharded.
    """
    if isinstance(everything, DTensor) or not isinstance(divided, DTensor) or everything.shape != divided.shape:
        return everything
    local = everything[_part(divided)].to(divided.to_local().device, copy=True).contiguous()
    return DTensor.from_local(
        local, divided.device_mesh, divided.placements, run_check=False, shape=divided.shape, stride=divided.stride()
    )


@torch.no_grad()
def assign_shard(parameter: Tensor, everything: Tensor) -> None:
    """Overwrite this rank's part of a parameter with values of a full tensor."""
    local = everything[_part(parameter)] if isinstance(parameter, DTensor) else everything
    local_shard(parameter).copy_(local)


def _part(tensor: DTensor) -> tuple[slice, ...]:
    """Return this rank's slice of the full tensor along each dimension."""
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))


class ShardedUpdateNorm(UpdateNorm):
    """Relative change of sharded weights by an update, measured on the same elements as in one process.

    Args:
        parameters: Trained parameters, before the update.
        mesh: Device mesh of all ranks.
    """

    def __init__(self, parameters: Sequence[Tensor], mesh: RankMesh) -> None:
        self._mesh = mesh
        super().__init__(parameters)

    def ratio(self) -> float:
        """Compute ‖Δw‖ / ‖w‖ since this object was created; all ranks call it together."""
        squares = torch.zeros(2, dtype=torch.float64)
        for parameter, before in zip(self._parameters, self._before, strict=True):
            squares[0] += (self._some(parameter) - before).square().sum().item()
            squares[1] += before.square().sum().item()
        dist.all_reduce(squares)
        return float((squares[0].sqrt() / squares[1].sqrt().clamp_min(1e-12)).item())

    def _some(self, parameter: Tensor) -> Tensor:
        local = local_shard(parameter.detach())
        if not self._mesh.counts_tensor(parameter):
            return local.flatten()[:0]
        if not isinstance(parameter, DTensor):
            return local.flatten()[:MEASURED_NUMBERS]
        part = _part(parameter)
        last_row = -(-MEASURED_NUMBERS // math.prod(parameter.shape[1:]))
        local = local[: max(0, last_row - part[0].start)]
        places = torch.zeros((), dtype=torch.long, device=local.device)  # index of each number in the full tensor
        for along, length, size in zip(part, local.shape, parameter.shape, strict=True):
            places = places.unsqueeze(-1) * size + torch.arange(along.start, along.start + length, device=local.device)
        return local[places < MEASURED_NUMBERS]


@torch.no_grad()
def clip_gradient_norm(parameters: Sequence[torch.nn.Parameter], max_norm: float, mesh: RankMesh) -> float:
    """Clip the gradient over all ranks to the norm `max_norm`, and return the norm before clipping.

    All ranks call it together. PyTorch's function does not accept tensors that are sharded in different ways.

    Args:
        parameters: Trained parameters; those without a gradient are skipped.
        max_norm: Maximum norm; infinity only measures.
        mesh: Device mesh of all ranks.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    counted = [torch.linalg.vector_norm(local_shard(each)) for each in gradients if mesh.counts_tensor(each)]
    square = torch.stack(counted).double().square().sum().cpu() if counted else torch.zeros((), dtype=torch.float64)
    dist.all_reduce(square)
    norm = float(square.sqrt())
    for each in gradients:
        local_shard(each).mul_(min(1.0, max_norm / (norm + 1e-6)))
    return norm
