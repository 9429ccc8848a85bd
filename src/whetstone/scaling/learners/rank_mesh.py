"""How do ranks stand to each other? In groups: each group computes passes of its own, its ranks one pass together.

    2 groups of 2     group 0   ranks 0 1     each has half of every product of a layer (tensor parallelism), and
                      group 1   ranks 2 3     between groups this and what is whole in a group are divided (FSDP2)

Easy to get wrong: what is not divided inside of a group is there once for each of its ranks, and whoever sums over all
ranks counts it once.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from whetstone.policies import TensorPlan

_GROUPS, _TENSOR = "groups", "tensor"


class RankMesh:
    """All ranks, in groups of some that follow on each other.

    Args:
        device: The type of where they compute.
        count: Of all.
        together: Of a group.
    """

    def __init__(self, device: str, count: int, together: int = 1) -> None:
        self.together = together
        mesh = init_device_mesh(device, (count // together, together), mesh_dim_names=(_GROUPS, _TENSOR))
        self.groups: DeviceMesh = mesh[_GROUPS]
        """This rank and those in its place in other groups, between which is divided what a group holds."""
        self._group: DeviceMesh = mesh[_TENSOR]

    def divide_products(self, network: torch.nn.Module, plan: TensorPlan) -> None:
        """Divide the products of a model's layers between the ranks of each group, in place."""
        styles: dict[str, ParallelStyle] = {
            name: ColwiseParallel() if cut == "outputs" else RowwiseParallel() for name, cut in plan.cuts.items()
        }
        # each rank has all of them, and takes its part
        parallelize_module(network, self._group, styles, src_data_rank=None)

    @torch.no_grad()
    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Add up gradients of which each rank of a group has a part."""
        for parameter in parameters:
            if isinstance(parameter.grad, DTensor) and parameter.grad.to_local().numel():
                dist.all_reduce(parameter.grad.to_local(), group=self._group.get_group())

    def counts(self, tensor: Tensor) -> bool:
        """Whether this rank is who counts what it has of a tensor: the only one, or the first, that has it."""
        if self._group.get_local_rank() == 0:
            return True
        if not isinstance(tensor, DTensor):
            return False
        names = tensor.device_mesh.mesh_dim_names or ()
        placed = dict(zip(names, tensor.placements, strict=True))
        return not isinstance(placed.get(_TENSOR, Replicate()), Replicate)
