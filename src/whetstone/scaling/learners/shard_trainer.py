"""What does one rank compute? Its passes of an update, its share of the gradient and of the step.

Easy to get wrong: ranks gather weights together, pass by pass. A rank that has nothing in a round computes a pass of
somebody else's for show, through the same loss, and adds nothing of it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from whetstone.errors import PolicyError
from whetstone.learning.model_trainer import LossOf, ModelTrainer
from whetstone.learning.noise import EmbeddingNoise
from whetstone.learning.optimizer import SHARDS, Optimizers
from whetstone.learning.packing import MicroBatch, pack
from whetstone.learning.resources import Movement
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

Whose = Literal["policy", "reference", "teacher"]
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


class ShardTrainer(ModelTrainer):
    """The policy in training, of which this rank holds a share.

    Args:
        policy: Whole; this rank's share of it is kept.
        settings: As of a learner in one process.
        mesh: The ranks.
        device: Where this one computes.
        frozen: By `reference` and `teacher`.
        own_teacher: As of `ModelTrainer`.
    """

    def __init__(
        self,
        policy: Policy,
        settings: OptimizerSettings,
        *,
        mesh: RankMesh,
        device: torch.device,
        frozen: Mapping[str, Frozen],
        own_teacher: bool,
    ) -> None:
        self._mesh, self._place = mesh, device
        self._partial: tuple[str, ...] = ()
        """Modules of the policy of whose gradient the ranks of a group have parts."""
        self._offloaded = {id(each.model) for each in frozen.values() if each.offload}
        if settings.optimizer_offload:
            self._offloaded.add(id(policy.model))
        models = {name: each.model for name, each in frozen.items()}
        # what is offloaded is the shares' affair
        settings = settings.model_copy(update={"optimizer_offload": False})
        super().__init__(
            policy, settings, reference=models.get("reference"), teacher=models.get("teacher"), own_teacher=own_teacher
        )
        self.policy = replace(policy, model=self._forward.network)
        self.optimizers = Optimizers(self.policy, settings, of_matrices=DividedMuon)
        self._device = device

    def _forward_of(self, model: torch.nn.Module, device: torch.device | None = None) -> TokenForward:
        forward = super()._forward_of(model)
        offload = id(model) in self._offloaded and self._place.type != "cpu"
        plan = self._plan_of(model)
        if plan is not None:
            self._mesh.divide_products(forward.network, plan)
        forward.shard(lambda module: divide(module, self._mesh.groups, offload=offload))
        forward.device = self._place
        return forward

    def _plan_of(self, model: torch.nn.Module) -> TensorPlan | None:
        """How the ranks of a group compute a model together; None where each computes all of it."""
        if self._mesh.together == 1:
            return None
        if model is self.policy.model:
            plan = tensor_plan(model, self._mesh.together)
            self._partial = plan.partial
            return plan
        with contextlib.suppress(PolicyError):  # a teacher of another kind is whole in a group
            return tensor_plan(model, self._mesh.together)
        return None

    def gradient(
        self,
        segments: Sequence[Segment],
        passes: Sequence[Pass],
        loss_of: LossOf,
        *,
        temperature: float,
        divisor: int,
        noise: EmbeddingNoise | None,
    ) -> Tally:
        """This rank's passes of an update, forward and backward."""
        tally = Tally()
        for each in passes:
            said = tally if each.counts else Tally()
            mine, of_mine = segments, loss_of
            if not each.counts:
                mine = [segments[i] for i in each.places]
                of_mine = _for_show(loss_of.part(each.places) if isinstance(loss_of, Divisible) else loss_of)
            (micro,) = self._micro_batches(mine, [each] if each.counts else [Pass(tuple(range(len(mine))))])
            self._learn(
                micro, of_mine, said, segments=mine, sloped=each.sloped, temperature=temperature, divisor=divisor,
                noise=noise,
            )  # fmt: skip
        network = self._forward.network
        partial = [p for name in self._partial for p in network.get_submodule(name).parameters()]
        self._mesh.settle_gradients(self.policy.trained(), partial)
        return tally

    @torch.no_grad()
    def read(
        self,
        segments: Sequence[Segment],
        passes: Sequence[Pass],
        of: Callable[[MicroBatch], TokenOutputs],
        chosen: Callable[[TokenOutputs], Tensor | None],
    ) -> list[Tensor]:
        """[A, …] of each segment, on the CPU; empty where another rank reads it."""
        found = [torch.empty(0)] * len(segments)
        for each, micro in zip(passes, self._micro_batches(segments, passes), strict=True):
            values = chosen(of(micro))
            if values is None:
                raise ValueError("the policy has no critic")
            if each.counts:
                for i, part in micro.by_segment(values.cpu()):
                    found[i] = part
        return found

    def outputs_of(self, whose: Whose, temperature: float) -> Callable[[MicroBatch], TokenOutputs]:
        """A model's passes."""
        other = {"policy": None, "reference": self._reference, "teacher": self._teacher}[whose]
        forward = other if other is not None else self._forward

        trained = self.policy.trained()

        def outputs(micro: MicroBatch) -> TokenOutputs:
            with adapters_off(forward.network, when=whose == "reference" and other is None):
                for parameter in trained:  # what is gathered first without a gradient never has one
                    parameter.requires_grad_(True)
                return forward(micro, temperature)

        return outputs

    def apply(self, *, critic_only: bool, done: int, share: float) -> Stepped:
        """A step from the gradient at hand."""
        began = time.perf_counter()
        self.optimizers.critic_only, self.optimizers.done, self.optimizers.share = critic_only, done, share
        found = self._apply_gradient()
        weights = None if found["update/skipped_fraction"] else self.weights()
        return Stepped(found, weights, self._peak_memory(), time.perf_counter() - began)

    def norm(self) -> float:
        """Return the norm of the gradient of all ranks."""
        return self._clipped_norm(self.policy.trained(), math.inf)

    def forget(self) -> None:
        """Let go of a gradient that is not applied."""
        self._forget_gradient()

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
        assert self._reference is not None
        for parameter, everything in zip(self._reference.network.parameters(), weights, strict=True):
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

    def _micro_batches(self, segments: Sequence[Segment], passes: Sequence[Pass]) -> Iterator[MicroBatch]:
        for each in passes:
            (micro,) = pack(
                [segments[i] for i in each.places],
                token_budget=_WHOLE,
                device=self._device,
                share=self.settings.prefix_sharing and self.shares,
            )
            yield replace(micro, indices=tuple(each.places[i] for i in micro.indices))

    def _note_finite(self, finite: bool) -> None:
        """The run counts them."""

    def _clipped_norm(self, parameters: Sequence[torch.nn.Parameter], most: float) -> float:
        return clipped_norm(parameters, most, self._mesh)

    def _movement(self, parameters: Sequence[torch.nn.Parameter]) -> Movement:
        return DividedMovement(parameters, self._mesh)


def _for_show(loss_of: LossOf) -> LossOf:
    """A loss with a gradient of 0 wherever the real one has one."""

    def loss(outputs: TokenOutputs, micro: MicroBatch) -> Any:
        said = loss_of(outputs, micro)
        return replace(said, loss=0.0 * said.loss)

    return loss


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
