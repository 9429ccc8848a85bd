"""Device mesh of the ranks: tensor parallelism within a group, data parallelism and FSDP2 between groups.

    2 groups of 2     group 0   ranks 0 1     each has half of every product of a layer (tensor parallelism);
                      group 1   ranks 2 3     these halves, and full tensors, are sharded between groups (FSDP2)

Note:
    A tensor that is not sharded within a group exists once per rank of the group. Sums over all ranks must count it
    once.
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
    """Device mesh of all ranks, in groups of consecutive ranks; see the module's example.

    Args:
        device: Device type of the ranks.
        count: Number of all ranks.
        together: Number of ranks of a group, which compute each layer together.
    """

    def __init__(self, device: str, count: int, together: int = 1) -> None:
        self.together = together
        shape, names = ((count,), (_GROUPS,)) if together == 1 else ((count // together, together), (_GROUPS, _TENSOR))
        mesh = init_device_mesh(device, shape, mesh_dim_names=names)
        self.groups: DeviceMesh = mesh[_GROUPS]
        """This rank and those at its index in other groups, between which the tensors of a group are sharded."""
        self._group: DeviceMesh | None = mesh[_TENSOR] if together > 1 else None

    def divide_products(self, network: torch.nn.Module, plan: TensorPlan) -> None:
        """Shard the matrix products of a model's layers over the ranks of each group (tensor parallelism), in place."""
        styles: dict[str, ParallelStyle] = {
            name: ColwiseParallel() if cut == "outputs" else RowwiseParallel() for name, cut in plan.cuts.items()
        }
        # each rank has all of them, and takes its part
        parallelize_module(network, self._group, styles, src_data_rank=None)

    @torch.no_grad()
    def settle_gradients(self, parameters: Iterable[Tensor], partial: Collection[Tensor]) -> None:
        """Synchronize the gradients of parameters that all ranks of a group have in full.

        Such gradients are computed equally. But if a device adds in any order, the last bits differ between ranks, and
        the copies of a weight would diverge.

        Args:
            parameters: Trained parameters.
            partial: Parameters of whose gradient each rank has a part; the parts are summed.
        """
        if self._group is None:
            return
        parts, group = {id(parameter) for parameter in partial}, self._group.get_group()
        for parameter in parameters:
            if not isinstance(parameter.grad, DTensor) or self._is_cut(parameter):
                continue
            gradient = parameter.grad.to_local()
            if not gradient.numel():  # as on the other ranks of this group
                continue
            if id(parameter) in parts:
                dist.all_reduce(gradient, group=group)
            else:
                dist.broadcast(gradient, group=group, group_src=0)

    def counts_tensor(self, tensor: Tensor) -> bool:
        """Return whether sums over all ranks include this rank's part of a tensor, so that each part counts once.

        They do if no earlier rank of the group has the same part.
        """
        return self._group is None or self._group.get_local_rank() == 0 or self._is_cut(tensor)

    @staticmethod
    def _is_cut(tensor: Tensor) -> bool:
        """Return whether the ranks of a group hold different parts of a tensor."""
        if not isinstance(tensor, DTensor):
            return False
        names = tensor.device_mesh.mesh_dim_names or ()
        placed = dict(zip(names, tensor.placements, strict=True))
        return not isinstance(placed.get(_TENSOR, Replicate()), Replicate)
