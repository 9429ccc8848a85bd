"""What does one rank compute? Its passes of an update, its share of the gradient and of the step.

Easy to get wrong: ranks gather weights together, pass by pass. A rank that has nothing in a round computes a pass of
somebody else's for show, through the same loss, and adds nothing of it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from whetstone.errors import PolicyError
from whetstone.learning.forward_passes import (
    Differentiation,
    GradientRequest,
    LossOf,
    ReadRequest,
    apply_gradient,
    drop_gradient,
    forward_of,
    loss_scale,
    values_of,
)
from whetstone.learning.optimizer import SHARDS, Optimizers
from whetstone.learning.packing import MicroBatch, pack
from whetstone.learning.resources import Flops, peak_memory_gib
from whetstone.learning.sharded_state import read_shards, write_shards
from whetstone.learning.tally import Tally
from whetstone.learning.token_outputs import TokenForward, TokenOutputs
from whetstone.policies import Policy, TensorPlan, adapters_off, tensor_plan
from whetstone.recipe import OptimizerSettings
from whetstone.scaling.learners.divided_muon import DividedMuon
from whetstone.scaling.learners.rank_mesh import RankMesh
from whetstone.scaling.learners.sharding import (
    DividedMovement,
    clipped_norm,
    divide,
    own_part,
    part_like,
    put,
    whole,
)
from whetstone.trajectory import Segment

_WHOLE = 2**62
"""A budget that everything fits."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass of one rank."""

    places: tuple[int, ...]
    """Which of the segments it was given."""
    sloped: bool = False
    """Whether there is a gradient."""
    counts: bool = True
    """Otherwise it is computed for show, since others compute one."""


@runtime_checkable
class Divisible(Protocol):
    """A loss that knows of segments, of which a rank has some."""

    def part(self, places: Sequence[int]) -> Any:
        """The loss of these."""
        ...

    def found(self) -> Any:
        """What passes found out beside their losses."""
        ...

    def take(self, places: Sequence[int], found: Any) -> None:
        """Hear what the part of these segments found out."""
        ...


@dataclass(frozen=True, slots=True)
class Frozen:
    """A frozen model beside the policy."""

    model: torch.nn.Module
    offload: bool
    """Whether it is kept on the CPU between its passes."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """What came of a step of the optimiser."""

    metrics: dict[str, float]
    weights: list[Tensor] | None
    """Those there are behind it, of the first rank; None where they are what they were."""
    peak_gib: float
    """The most memory this rank held so far."""
    seconds: float


class ShardPasses:
    """Forward passes of the policy in training, of which this rank holds a part.

    Args:
        policy: Whole; this rank keeps its part of it.
        settings: Same as for a learner in one process.
        mesh: The ranks.
        device: Device of this rank.
        frozen: Frozen models by `reference` and `teacher`.
    """

    def __init__(
        self,
        policy: Policy,
        settings: OptimizerSettings,
        *,
        mesh: RankMesh,
        device: torch.device,
        frozen: Mapping[str, Frozen],
    ) -> None:
        self._mesh, self.device = mesh, device
        self._partial: tuple[str, ...] = ()
        """Modules of the policy of whose gradient the ranks of a group have parts."""
        offload = settings.optimizer_offload
        # FSDP offloads the optimizer with the parameters
        self.settings = settings.model_copy(update={"optimizer_offload": False})
        self._flops = Flops(policy.model, policy.dtype)
        self._forwards = {"policy": self._sharded(policy.model, policy, offload=offload)}
        for whose, each in frozen.items():
            self._forwards[whose] = self._sharded(each.model, policy, offload=each.offload)
        self.forward = self._forwards["policy"]
        self.policy = replace(policy, model=self.forward.network)
        self.optimizers = Optimizers(self.policy, self.settings, of_matrices=DividedMuon)
        self.token_budget = settings.micro_batch_tokens

    def _sharded(self, model: torch.nn.Module, policy: Policy, *, offload: bool) -> TokenForward:
        """Return the forward pass of a model whose parameters are divided between the ranks."""
        forward = forward_of(model, policy, self.settings)
        offload = offload and self.device.type != "cpu"
        plan = self._plan_of(model, trained=model is policy.model)
        if plan is not None:
            self._mesh.divide_products(forward.network, plan)
        forward.shard(lambda module: divide(module, self._mesh.groups, offload=offload))
        forward.device = self.device
        return forward

    def _plan_of(self, model: torch.nn.Module, *, trained: bool) -> TensorPlan | None:
        """Return how the ranks of a group compute a model together; None if each computes all of it."""
        if self._mesh.together == 1:
            return None
        if trained:
            plan = tensor_plan(model, self._mesh.together)
            self._partial = plan.partial
            return plan
        with contextlib.suppress(PolicyError):  # a teacher of another architecture is whole in a group
            return tensor_plan(model, self._mesh.together)
        return None

    def gradient(self, request: GradientRequest, passes: Sequence[Pass]) -> Tally:
        """Compute this rank's passes of an update, forward and backward."""
        tally, differentiate = Tally(), Differentiation(self.forward, self._flops, loss_scale(self.policy))
        for each in passes:
            mine = request if each.counts else _for_show(request, each)
            places = each.places if each.counts else range(len(mine.segments))
            of_pass = tally if each.counts else Tally()
            micro = self._micro_batch(mine.segments, places)
            differentiate(micro, mine, of_pass, has_gradient=each.sloped)
            of_pass.over += len(micro.ids) > self.token_budget
        parts = [p for name in self._partial for p in self.forward.network.get_submodule(name).parameters()]
        self._mesh.settle_gradients(self.policy.trained(), parts)
        return tally

    @torch.no_grad()
    def read(self, request: ReadRequest, passes: Sequence[Pass]) -> dict[str, list[Tensor]]:
        """Return, by column, [A, …] of each segment, on the CPU; empty if another rank reads the segment."""
        found: dict[str, list[Tensor]] = {
            column: [torch.empty(0)] * len(request.segments) for column in request.columns
        }
        forward = self._forwards.get(request.whose, self.forward)
        without = request.whose == "reference" and "reference" not in self._forwards
        for each in passes:
            micro = self._micro_batch(request.segments, each.places)
            with adapters_off(forward.network, when=without):
                for parameter in self.policy.trained():  # a parameter first gathered without a gradient never has one
                    parameter.requires_grad_(True)
                outputs = forward(micro, request.temperature)
            for column, of_segments in found.items():
                values = values_of(outputs, column)
                if each.counts:
                    for i, part in micro.by_segment(values.cpu()):
                        of_segments[i] = part
        return found

    def apply(self, *, critic_only: bool, done: int, share: float) -> Stepped:
        """Make an optimizer step from the gradient at hand."""
        began = time.perf_counter()
        self.optimizers.critic_only, self.optimizers.done, self.optimizers.share = critic_only, done, share
        clip, movement_of = partial(clipped_norm, mesh=self._mesh), partial(DividedMovement, mesh=self._mesh)
        found = apply_gradient(self.policy, self.optimizers, self.settings, clip=clip, movement_of=movement_of)
        weights = None if found["update/skipped_fraction"] else self.weights()
        return Stepped(found, weights, peak_memory_gib(self.device), time.perf_counter() - began)

    def norm(self) -> float:
        """Return the norm of the gradient of all ranks."""
        return clipped_norm(self.policy.trained(), math.inf, self._mesh) / loss_scale(self.policy)

    def drop(self) -> None:
        """Drop the gradient."""
        drop_gradient(self.policy)

    def weights(self) -> list[Tensor]:
        """All of what is trained, on the CPU; all ranks ask together. Empty but of the first rank."""
        found = [whole(parameter.detach()).cpu() for parameter in self.policy.trained()]
        return found if dist.get_rank() == 0 else []

    def gradients(self) -> list[Tensor]:
        """The gradient at hand, of all of what is trained, as `weights`; 0 where there is none."""
        of_each = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.policy.trained()]
        found = [whole(gradient.detach()).cpu() for gradient in of_each]
        return found if dist.get_rank() == 0 else []

    def put_weights(self, weights: Sequence[Tensor]) -> None:
        """Take other weights for those that are trained."""
        for parameter, everything in zip(self.policy.trained(), weights, strict=True):
            put(parameter, everything)

    def put_reference(self, weights: Sequence[Tensor]) -> None:
        """Take other weights for the reference's."""
        for parameter, everything in zip(self._forwards["reference"].network.parameters(), weights, strict=True):
            put(parameter, everything)

    def put_critic_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Take the slow copies of the critic's heads as the run has them."""
        critic = self.policy.critic
        for name, value in buffers.items():
            assert critic is not None
            getattr(critic, name).copy_(value)

    def save(self, folder: Any) -> list[dict[str, Any]]:
        """Write this rank's share of the optimiser's state; what is the same everywhere."""
        return write_shards(folder, self._each)

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on where an optimiser's state was taken, by whatever number of processes."""
        saved = state["optimizers"]
        if state.get(SHARDS) is not None:
            saved = read_shards(state[SHARDS], self._each, saved)
        for optimizer, each in zip(self._each, saved, strict=True):
            optimizer.load_state_dict(_as_divided(optimizer, each))

    def own_state(self) -> list[dict[str, Any]]:
        """This rank's share of the optimiser's state, as plain tensors; see `put_own_state`."""
        states = []
        for optimizer in self._each:
            state = optimizer.state_dict()
            mine = {
                place: {
                    name: own_part(value).cpu() if isinstance(value, Tensor) else value for name, value in of.items()
                }
                for place, of in state["state"].items()
            }
            states.append({**state, "state": mine})
        return states

    def put_own_state(self, states: Sequence[dict[str, Any]]) -> None:
        """Go on with this rank's share, as it was kept over a new beginning."""
        for optimizer, state in zip(self._each, states, strict=True):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            divided = {
                place: {name: _wrapped(value, parameters[place]) for name, value in of.items()}
                for place, of in state["state"].items()
            }
            optimizer.load_state_dict({**state, "state": divided})

    @property
    def _each(self) -> Sequence[Optimizer]:
        return self.optimizers.each

    def _micro_batch(self, segments: Sequence[Segment], places: Sequence[int]) -> MicroBatch:
        """Return some of the segments as one micro-batch."""
        share = self.settings.prefix_sharing and self.forward.shares
        (micro,) = pack([segments[i] for i in places], token_budget=_WHOLE, device=self.device, share=share)
        return replace(micro, indices=tuple(places[i] for i in micro.indices))


def _for_show(request: GradientRequest, shown: Pass) -> GradientRequest:
    """Return the request of a pass that others compute too, with a loss whose gradient is 0."""
    loss_of = request.loss_of
    part: LossOf = loss_of.part(shown.places) if isinstance(loss_of, Divisible) else loss_of

    def loss(outputs: TokenOutputs, micro: MicroBatch) -> Any:
        found = part(outputs, micro)
        return replace(found, loss=0.0 * found.loss)

    return replace(request, segments=[request.segments[i] for i in shown.places], loss_of=loss)


def _as_divided(optimizer: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """A whole state, of which this rank has its share."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    divided = {
        place: {
            name: part_like(value, parameters[place]) if isinstance(value, Tensor) else value
            for name, value in of.items()
        }
        for place, of in state["state"].items()
    }
    return {**state, "state": divided}


def _wrapped(value: Any, parameter: Tensor) -> Any:
    """A rank's own part of what is remembered of a parameter, as a divided tensor again."""
    if not isinstance(value, Tensor) or not isinstance(parameter, DTensor):
        return value
    if value.shape != parameter.to_local().shape or value.ndim == 0:
        return value
    return DTensor.from_local(
        value.to(parameter.to_local().device),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
