"""Forward and backward passes of one rank: its passes of an update, its shard of the gradient and of the optimizer
step.

Note:
    Ranks gather weights together, pass by pass. A rank without work in a round computes a dummy pass on another rank's
    segments, through the same loss, and discards the result.
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
from whetstone.learning.flops import Flops, peak_memory_gib
from whetstone.learning.forward_passes import (
    Differentiation,
    GradientRequest,
    ReadRequest,
    TokenLossFunction,
    apply_gradient,
    build_forward,
    drop_gradient,
    get_output_column,
    loss_scale,
)
from whetstone.learning.metric_accumulator import MetricAccumulator
from whetstone.learning.optimizer import SHARDS, Optimizers
from whetstone.learning.packing import MicroBatch, pack_segments
from whetstone.learning.sharded_state import read_shards, write_shards
from whetstone.learning.token_outputs import TokenForward, TokenOutputs
from whetstone.policies import Policy, TensorPlan, adapters_off, tensor_plan
from whetstone.recipe import OptimizerSettings
from whetstone.scaling.distributed_learner.distributed_muon import DistributedMuon
from whetstone.scaling.distributed_learner.rank_mesh import RankMesh
from whetstone.scaling.distributed_learner.sharding import (
    ShardedUpdateNorm,
    assign_shard,
    clip_gradient_norm,
    full_tensor,
    local_shard,
    shard_like,
    shard_model,
)
from whetstone.trajectory import Segment

_NO_LIMIT = 2**62
"""Token budget that no micro-batch exceeds."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Forward pass of one rank over some segments."""

    places: tuple[int, ...]
    """Indices of the pass's segments among those of the request."""
    sloped: bool = False
    """Whether the pass has a gradient."""
    counts: bool = True
    """Whether the results count; False: a dummy pass."""


@runtime_checkable
class ShardedLoss(Protocol):
    """Loss with data per segment, of which a rank receives the part of its segments."""

    def part(self, places: Sequence[int]) -> Any:
        """Return the loss for the segments with these indices."""
        ...

    def collect_statistics(self) -> Any:
        """Return the statistics of a rank's passes in addition to their losses."""
        ...

    def add_statistics(self, places: Sequence[int], statistics: Any) -> None:
        """Add the statistics that a rank collected for the segments with these indices."""
        ...


@dataclass(frozen=True, slots=True)
class Frozen:
    """Frozen model that ranks compute in addition to the policy."""

    model: torch.nn.Module
    offload: bool
    """Whether the model is kept on the CPU between its passes."""


@dataclass(frozen=True, slots=True)
class OptimizerStepResult:
    """Result of an optimizer step on one rank."""

    metrics: dict[str, float]
    weights: list[Tensor] | None
    """Full weights after the step, from the first rank; None if they are unchanged."""
    peak_gib: float
    """Peak memory of the rank so far, in GiB."""
    seconds: float


class ShardPasses:
    """Forward passes of a policy of which this rank holds a shard.

    Args:
        policy: Full policy; the rank keeps its shard.
        settings: Settings of the optimizer, the same as for a learner in one process.
        mesh: Device mesh of all ranks.
        device: Device of this rank.
        frozen: Frozen models by name, `reference` and `teacher`.
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
        self.optimizers = Optimizers(self.policy, self.settings, of_matrices=DistributedMuon)
        self.token_budget = settings.micro_batch_tokens

    def _sharded(self, model: torch.nn.Module, policy: Policy, *, offload: bool) -> TokenForward:
        """Return the forward pass of a model whose parameters are sharded over the ranks."""
        forward = build_forward(model, policy, self.settings)
        offload = offload and self.device.type != "cpu"
        plan = self._find_plan(model, trained=model is policy.model)
        if plan is not None:
            self._mesh.divide_products(forward.network, plan)
        forward.shard_parameters(lambda module: shard_model(module, self._mesh.groups, offload=offload))
        forward.device = self.device
        return forward

    def _find_plan(self, model: torch.nn.Module, *, trained: bool) -> TensorPlan | None:
        """Return the tensor-parallel plan of a model; None if each rank computes all of it."""
        if self._mesh.together == 1:
            return None
        if trained:
            plan = tensor_plan(model, self._mesh.together)
            self._partial = plan.partial
            return plan
        with contextlib.suppress(PolicyError):  # a teacher of another architecture is whole in a group
            return tensor_plan(model, self._mesh.together)
        return None

    def gradient(self, request: GradientRequest, passes: Sequence[Pass]) -> MetricAccumulator:
        """Compute this rank's passes of an update, forward and backward, and return their metrics."""
        tally, differentiate = MetricAccumulator(), Differentiation(self.forward, self._flops, loss_scale(self.policy))
        for each in passes:
            pass_request = request if each.counts else _dummy_request(request, each)
            places = each.places if each.counts else range(len(pass_request.segments))
            of_pass = tally if each.counts else MetricAccumulator()
            micro = self._micro_batch(pass_request.segments, places)
            differentiate(micro, pass_request, of_pass, has_gradient=each.sloped)
            of_pass.oversized += len(micro.ids) > self.token_budget
        parts = [p for name in self._partial for p in self.forward.network.get_submodule(name).parameters()]
        self._mesh.settle_gradients(self.policy.trainable_parameters(), parts)
        return tally

    @torch.no_grad()
    def read(self, request: ReadRequest, passes: Sequence[Pass]) -> dict[str, list[Tensor]]:
        """Compute columns such as log-probs without a gradient.

        Returns:
            By column, a tensor [A, …] per segment on the CPU; empty if another rank reads the segment.
        """
        columns: dict[str, list[Tensor]] = {
            column: [torch.empty(0)] * len(request.segments) for column in request.columns
        }
        forward = self._forwards.get(request.whose, self.forward)
        without = request.whose == "reference" and "reference" not in self._forwards
        for each in passes:
            micro = self._micro_batch(request.segments, each.places)
            with adapters_off(forward.network, when=without):
                for (
                    parameter
                ) in self.policy.trainable_parameters():  # a parameter gathered without a gradient never has one
                    parameter.requires_grad_(True)
                outputs = forward(micro, request.temperature)
            for column, of_segments in columns.items():
                values = get_output_column(outputs, column)
                if each.counts:
                    for i, part in micro.by_segment(values.cpu()):
                        of_segments[i] = part
        return columns

    def apply(self, *, critic_only: bool, done: int, share: float, rate_scale: float) -> OptimizerStepResult:
        """Make an optimizer step with the accumulated gradient.

        Args:
            critic_only: Whether only the critic is updated.
            done: Number of steps made so far.
            share: Fraction of the stage that has passed, for the schedule.
            rate_scale: Factor of the learning rate.
        """
        began = time.perf_counter()
        self.optimizers.critic_only, self.optimizers.done, self.optimizers.share = critic_only, done, share
        self.optimizers.rate_scale = rate_scale
        clip, measure_update = partial(clip_gradient_norm, mesh=self._mesh), partial(ShardedUpdateNorm, mesh=self._mesh)
        metrics = apply_gradient(self.policy, self.optimizers, self.settings, clip=clip, measure_update=measure_update)
        weights = None if metrics["update/skipped_fraction"] else self.weights()
        return OptimizerStepResult(metrics, weights, peak_memory_gib(self.device), time.perf_counter() - began)

    def norm(self) -> float:
        """Return the norm of the gradient over all ranks."""
        return clip_gradient_norm(self.policy.trainable_parameters(), math.inf, self._mesh) / loss_scale(self.policy)

    def drop(self) -> None:
        """Discard the accumulated gradient."""
        drop_gradient(self.policy)

    def weights(self) -> list[Tensor]:
        """Gather all trained weights on the CPU; empty except on the first rank.

        All ranks call it together.
        """
        weights = [full_tensor(parameter.detach()).cpu() for parameter in self.policy.trainable_parameters()]
        return weights if dist.get_rank() == 0 else []

    def gradients(self) -> list[Tensor]:
        """Gather the gradient of all trained weights on the CPU; zeros for weights without a gradient.

        All ranks call it together. The list is empty except on the first rank.
        """
        of_each = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.policy.trainable_parameters()]
        gradients = [full_tensor(gradient.detach()).cpu() for gradient in of_each]
        return gradients if dist.get_rank() == 0 else []

    def put_weights(self, weights: Sequence[Tensor]) -> None:
        """Replace this rank's shard of the trained weights.

        Args:
            weights: Full tensors, in the order of `Policy.trainable_parameters`.
        """
        for parameter, everything in zip(self.policy.trainable_parameters(), weights, strict=True):
            assign_shard(parameter, everything)

    def put_reference(self, weights: Sequence[Tensor]) -> None:
        """Replace this rank's shard of the reference model's weights.

        Args:
            weights: Full tensors, in the order of the model's parameters.
        """
        for parameter, everything in zip(self._forwards["reference"].network.parameters(), weights, strict=True):
            assign_shard(parameter, everything)

    def put_critic_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Replace the target copies of the critic's heads by those of the run."""
        critic = self.policy.critic
        for name, value in buffers.items():
            assert critic is not None
            getattr(critic, name).copy_(value)

    def save(self, folder: Any) -> list[dict[str, Any]]:
        """Write this rank's shard of the optimizer state to a folder; return the values common to all ranks."""
        return write_shards(folder, self._each)

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore an optimizer state that any number of processes saved."""
        saved = state["optimizers"]
        if state.get(SHARDS) is not None:
            saved = read_shards(state[SHARDS], self._each, saved)
        for optimizer, each in zip(self._each, saved, strict=True):
            optimizer.load_state_dict(_shard_state(optimizer, each))

    def own_state(self) -> list[dict[str, Any]]:
        """Return this rank's shard of the optimizer state on the CPU; see `put_own_state`."""
        states = []
        for optimizer in self._each:
            state = optimizer.state_dict()
            local_state = {
                place: {
                    name: local_shard(value).cpu() if isinstance(value, Tensor) else value for name, value in of.items()
                }
                for place, of in state["state"].items()
            }
            states.append({**state, "state": local_state})
        return states

    def put_own_state(self, states: Sequence[dict[str, Any]]) -> None:
        """Restore this rank's shard of the optimizer state after a restart."""
        for optimizer, state in zip(self._each, states, strict=True):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            divided = {
                place: {name: _wrap_shard(value, parameters[place]) for name, value in of.items()}
                for place, of in state["state"].items()
            }
            optimizer.load_state_dict({**state, "state": divided})

    @property
    def _each(self) -> Sequence[Optimizer]:
        return self.optimizers.all_optimizers

    def _micro_batch(self, segments: Sequence[Segment], places: Sequence[int]) -> MicroBatch:
        """Pack some of the segments into one micro-batch."""
        share = self.settings.prefix_sharing and self.forward.shares
        (micro,) = pack_segments([segments[i] for i in places], token_budget=_NO_LIMIT, device=self.device, share=share)
        return replace(micro, indices=tuple(places[i] for i in micro.indices))


def _dummy_request(request: GradientRequest, dummy: Pass) -> GradientRequest:
    """Return the request of a dummy pass, whose loss has a gradient of 0."""
    loss_of = request.loss_of
    part: TokenLossFunction = loss_of.part(dummy.places) if isinstance(loss_of, ShardedLoss) else loss_of

    def loss(outputs: TokenOutputs, micro: MicroBatch) -> Any:
        result = part(outputs, micro)
        return replace(result, loss=0.0 * result.loss)

    return replace(request, segments=[request.segments[i] for i in dummy.places], loss_of=loss)


def _shard_state(optimizer: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return this rank's shard of a full optimizer state."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    divided = {
        place: {
            name: shard_like(value, parameters[place]) if isinstance(value, Tensor) else value
            for name, value in of.items()
        }
        for place, of in state["state"].items()
    }
    return {**state, "state": divided}


def _wrap_shard(value: Any, parameter: Tensor) -> Any:
    """Wrap a rank's local part of a parameter's optimizer state as a sharded tensor."""
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
