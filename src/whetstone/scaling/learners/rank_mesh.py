"""How do ranks stand to each other? In groups: each group computes passes of its own, its ranks one pass together.

    2 groups of 2     group 0   ranks 0 1     each has half of every product of a layer (tensor parallelism), and
                      group 1   ranks 2 3     between groups this and what is whole in a group are divided (FSDP2)

Easy to get wrong: what is not divided inside of a group is there once for each of its ranks, and whoever sums over all
ranks counts it once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

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
        shape, names = ((count,), (_GROUPS,)) if together == 1 else ((count // together, together), (_GROUPS, _TENSOR))
        mesh = init_device_mesh(device, shape, mesh_dim_names=names)
        self.groups: DeviceMesh = mesh[_GROUPS]
        """This rank and those in its place in other groups, between which is divided what a group holds."""
        self._group: DeviceMesh | None = mesh[_TENSOR] if together > 1 else None

    def divide_products(self, network: torch.nn.Module, plan: TensorPlan) -> None:
        """Divide the products of a model's layers between the ranks of each group, in place."""
        styles: dict[str, ParallelStyle] = {
            name: ColwiseParallel() if cut == "outputs" else RowwiseParallel() for name, cut in plan.cuts.items()
        }
        # each rank has all of them, and takes its part
        parallelize_module(network, self._group, styles, src_data_rank=None)

    @torch.no_grad()
    def settle_gradients(self, parameters: Iterable[Tensor], partial: Collection[Tensor]) -> None:
        """Have all ranks of a group know the same gradient of what each has all of.

        They compute it alike; but where a device adds in any order, the last bits are each rank's own, and weights that
        are one would drift apart.

        Args:
            partial: Parameters of whose gradient each rank has a part; those are added up.
        """
        if self._group is None:
            return
        parts, group = {id(parameter) for parameter in partial}, self._group.get_group()
        for parameter in parameters:
            if not isinstance(parameter.grad, DTensor) or self._is_cut(parameter):
                continue
            mine = parameter.grad.to_local()
            if not mine.numel():  # as on the other ranks of this group
                continue
            if id(parameter) in parts:
                dist.all_reduce(mine, group=group)
            else:
                dist.broadcast(mine, group=group, group_src=0)

    def counts(self, tensor: Tensor) -> bool:
        """Whether this rank is who counts what it has of a tensor: the only one, or the first, that has it."""
        return self._group is None or self._group.get_local_rank() == 0 or self._is_cut(tensor)

    @staticmethod
    def _is_cut(tensor: Tensor) -> bool:
        """Whether the ranks of a group have different parts of it."""
        if not isinstance(tensor, DTensor):
            return False
        names = tensor.device_mesh.mesh_dim_names or ()
        placed = dict(zip(names, tensor.placements, strict=True))
        return not isinstance(placed.get(_TENSOR, Replicate()), Replicate)
