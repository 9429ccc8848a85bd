"""Forward and backward passes over segments, for whichever process computes them.

`ForwardPasses` is the protocol: `gradient` accumulates the gradient of a loss, `read` returns columns of log-probs,
entropies or values, and `apply` makes an optimizer step. `LocalPasses` computes in this process;
`scaling/distributed_learner/group_passes.py` distributes the passes among ranks. `model_trainer.py` uses either.

Note:
    A token that several segments share is computed once but counts once for each segment: its log-prob is passed to the
    loss of every one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, Protocol

import torch
from torch import Tensor

from whetstone.algorithms import TokenLoss
from whetstone.inference import Member
from whetstone.learning.embedding_noise import EmbeddingNoise
from whetstone.learning.flops import Flops, UpdateNorm, peak_memory_gib
from whetstone.learning.metric_accumulator import MetricAccumulator
from whetstone.learning.optimizer import Optimizers
from whetstone.learning.packing import MicroBatch, pack_segments
from whetstone.learning.token_outputs import Layout, TokenForward, TokenOutputs
from whetstone.policies import Policy, adapters_off
from whetstone.recipe import OptimizerSettings
from whetstone.trajectory import Segment

TokenLossFunction = Callable[[TokenOutputs, MicroBatch], TokenLoss]
"""(outputs of the policy at the action tokens, with gradient; the micro-batch) → a loss per token."""
Watch = Callable[[Sequence[Segment], TokenOutputs, MicroBatch, TokenLoss], None]
"""Receives every micro-batch of an update before its backward pass."""
Whose = Literal["policy", "reference", "teacher"]
OutputColumn = Literal["logprobs", "entropies", "values"]
"""A field of `TokenOutputs`."""
_FLOAT16_SCALE = 2.0**12
"""Factor of the loss in float16: gradients of activations would be 0 without it."""
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Texts of errors of allocators. cuBLAS takes its workspace outside PyTorch's allocator and names only a status."""


@dataclass(frozen=True, slots=True)
class GradientRequest:
    """Gradient of a loss over segments."""

    segments: Sequence[Segment]
    loss_of: TokenLossFunction
    divisor: int
    """Tokens that the sum of the losses is divided by."""
    temperature: float = 1.0
    """Divisor of the logits in sampling."""
    flat: Collection[int] = ()
    """Segments without a gradient, which are computed for metrics only."""
    noise: EmbeddingNoise | None = None
    """Noise of a second forward pass, for losses that compare with it."""
    watch: Watch | None = None
    """Called in this process only."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Columns of a model's outputs at the action tokens of segments."""

    segments: Sequence[Segment]
    columns: tuple[OutputColumn, ...] = ("logprobs",)
    temperature: float = 1.0
    whose: Whose = "policy"


class ForwardPasses(Protocol):
    """Computes forward and backward passes of a policy in training, and of its frozen reference and teacher."""

    token_budget: int
    """Maximum number of tokens of one forward pass. The caller halves it if memory did not suffice."""

    @property
    def optimizers(self) -> Optimizers:
        """Optimizers and schedule of the stage."""
        ...

    @property
    def layout(self) -> Layout:
        """Layout of the segments in a forward pass."""
        ...

    @property
    def shares(self) -> bool:
        """Whether tokens that segments share are computed once."""
        ...

    def gradient(self, request: GradientRequest) -> MetricAccumulator:
        """Add the gradient of a loss to the accumulated gradient.

        Raises:
            OutOfMemoryError, MemoryError, RuntimeError: Memory did not suffice for `token_budget`.
        """
        ...

    def read(self, request: ReadRequest) -> Mapping[str, list[Tensor]]:
        """Return [A, …] per segment, by column, on the device of the policy.

        Raises:
            ValueError: The policy has no critic, and `values` are requested.
        """
        ...

    def apply(self) -> dict[str, float]:
        """Make an optimizer step from the accumulated gradient, and drop the gradient.

        Returns:
            Metrics; `update/nonfinite_fraction` is 1 if the gradient was not finite, and no step was made.
        """
        ...

    def norm(self) -> float:
        """Return the norm of the accumulated gradient."""
        ...

    def drop(self) -> None:
        """Drop the accumulated gradient."""
        ...

    def take_reference(self) -> None:
        """Use the current weights of the reference, which changed."""
        ...

    def peak_memory(self) -> float:
        """Return the peak memory of the computing devices, in GiB."""
        ...

    def utilization(self, flops: int, seconds: float) -> float:
        """Return the fraction of the peak arithmetic of the computing devices."""
        ...


def select_frozen_members(policy: Policy, members: Mapping[str, Member]) -> dict[str, Member]:
    """Return the reference and the teacher among the members of a learner, unless they are the policy itself."""
    frozen = {name: members[name] for name in ("reference", "teacher") if name in members}
    return {name: member for name, member in frozen.items() if member.policy.model is not policy.model}


class LocalPasses:
    """Passes in this process; see `ForwardPasses`.

    Args:
        policy: Its weights are changed in place.
        settings: Optimizer, schedule, and layout of forward passes.
        members: Frozen models by `reference` and `teacher`. Without a reference, it is the policy without its adapters.
    """

    def __init__(
        self,
        policy: Policy,
        settings: OptimizerSettings,
        *,
        members: Mapping[str, Member] = MappingProxyType({}),
    ) -> None:
        self.policy, self.settings = policy, settings
        self.optimizers = Optimizers(policy, settings)
        self.token_budget = settings.micro_batch_tokens
        self.device = next(policy.model.parameters()).device
        self.forwards = {"policy": build_forward(policy.model, policy, settings)}
        """By whose model."""
        for whose, member in select_frozen_members(policy, members).items():
            self.forwards[whose] = build_forward(member.policy.model, policy, settings, member.device)
        self.scale = loss_scale(policy)
        self._flops = Flops(policy.model, policy.dtype)

    @property
    def layout(self) -> Layout:
        """See `ForwardPasses.layout`."""
        return self.forwards["policy"].way.layout

    @property
    def shares(self) -> bool:
        """See `ForwardPasses.shares`."""
        return self.forwards["policy"].shares

    def gradient(self, request: GradientRequest) -> MetricAccumulator:
        """See `ForwardPasses.gradient`."""
        tally, differentiate = MetricAccumulator(), Differentiation(self.forwards["policy"], self._flops, self.scale)
        for micro, has_gradient in self._split_micro_batches(request):
            differentiate(micro, request, tally, has_gradient=has_gradient)
            tally.oversized += len(micro.ids) > self.token_budget
        return tally

    @torch.no_grad()
    def read(self, request: ReadRequest) -> dict[str, list[Tensor]]:
        """See `ForwardPasses.read`."""
        forward = self.forwards.get(request.whose, self.forwards["policy"])
        without = request.whose == "reference" and "reference" not in self.forwards
        outputs_by_column: dict[str, list[Tensor]] = {
            column: [torch.empty(0, device=self.device)] * len(request.segments) for column in request.columns
        }
        with adapters_off(forward.network, when=without), forward.at_work():
            for micro in self._packed(request.segments, forward.device):
                outputs = forward(micro, request.temperature)
                for column, of_segments in outputs_by_column.items():
                    for i, part in micro.by_segment(get_output_column(outputs, column).to(self.device)):
                        of_segments[i] = part
        return outputs_by_column

    def apply(self) -> dict[str, float]:
        """See `ForwardPasses.apply`."""
        return apply_gradient(
            self.policy, self.optimizers, self.settings, clip=_clipped_norm, measure_update=UpdateNorm
        )

    def norm(self) -> float:
        """See `ForwardPasses.norm`."""
        return _clipped_norm(self.policy.trainable_parameters(), math.inf) / self.scale

    def drop(self) -> None:
        """See `ForwardPasses.drop`."""
        drop_gradient(self.policy)

    def take_reference(self) -> None:
        """See `ForwardPasses.take_reference`; the reference is computed from its own weights."""

    def peak_memory(self) -> float:
        """See `ForwardPasses.peak_memory`."""
        return peak_memory_gib(self.device)

    def utilization(self, flops: int, seconds: float) -> float:
        """See `ForwardPasses.utilization`."""
        return self._flops.utilization(flops, seconds)

    def _split_micro_batches(self, request: GradientRequest) -> Iterator[tuple[MicroBatch, bool]]:
        """Yield each micro-batch and whether it has a gradient; those that have one first."""
        flat = set(request.flat)
        sloped = [i for i in range(len(request.segments)) if i not in flat]
        for places, has_gradient in ((sloped, True), (sorted(flat), False)):
            for micro in self._packed([request.segments[i] for i in places], self.device):
                yield replace(micro, indices=tuple(places[i] for i in micro.indices)), has_gradient

    def _packed(self, segments: Sequence[Segment], device: torch.device) -> Iterable[MicroBatch]:
        check_token_ids(segments, self.policy)
        share = self.settings.prefix_sharing and self.shares
        return pack_segments(segments, token_budget=self.token_budget, device=device, share=share)


@dataclass(frozen=True, slots=True)
class Differentiation:
    """Forward and backward pass of a micro-batch."""

    forward: TokenForward
    flops: Flops
    scale: float
    """Factor of the loss; see `loss_scale`."""

    def __call__(
        self, micro: MicroBatch, request: GradientRequest, tally: MetricAccumulator, *, has_gradient: bool
    ) -> None:
        """Compute the loss, and its gradient if it has one, and add the results to `tally`."""
        with torch.set_grad_enabled(has_gradient):
            outputs = self.forward(micro, request.temperature, noise=request.noise)
            per_token = request.loss_of(outputs, micro)
            if request.watch is not None:
                request.watch(request.segments, outputs, micro, per_token)
            if has_gradient:
                (per_token.loss.sum() * self.scale / request.divisor).backward()  # type: ignore[no-untyped-call]
        tally.add(per_token, outputs, micro, request.divisor)
        tally.flops += self.flops.of(micro, backward=has_gradient) * (1 if request.noise is None else 2)


def build_forward(
    model: torch.nn.Module, policy: Policy, settings: OptimizerSettings, device: torch.device | None = None
) -> TokenForward:
    """Return the forward pass of a model, with the critic if it is the policy's."""
    return TokenForward(
        model,
        logit_bytes=settings.logits_memory_mb * 2**20,
        dtype=policy.dtype,
        checkpointing=settings.activation_checkpointing,
        critic=policy.critic if model is policy.model else None,
        device=device,
    )


def loss_scale(policy: Policy) -> float:
    """Return the factor of the loss of a policy.

    The gradient is divided by it before it is applied.
    """
    return _FLOAT16_SCALE if policy.dtype == torch.float16 else 1.0


def apply_gradient(
    policy: Policy,
    optimizers: Optimizers,
    settings: OptimizerSettings,
    *,
    clip: Callable[[Sequence[torch.nn.Parameter], float], float],
    measure_update: Callable[[Sequence[torch.nn.Parameter]], UpdateNorm],
) -> dict[str, float]:
    """Make an optimizer step from the accumulated gradient, and drop the gradient.

    Args:
        clip: Scales a longer gradient down to a norm, and returns the norm that it had.
        measure_update: Measures the change of parameters from this call on.

    Returns:
        Metrics of the step.
    """
    parameters, scale = policy.trainable_parameters(), loss_scale(policy)
    if scale != 1.0:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad /= scale
    norm = clip(parameters, settings.max_grad_norm)
    moves = math.isfinite(norm) and norm > 0
    metrics = {"update/grad_norm": norm} if math.isfinite(norm) else {}
    if moves:
        movement = measure_update(parameters)
        optimizers.update()
        metrics["update/relative_norm"] = movement.ratio()
    drop_gradient(policy)
    return metrics | {
        "update/skipped_fraction": float(not moves),
        "update/nonfinite_fraction": float(not math.isfinite(norm)),
    }


def drop_gradient(policy: Policy) -> None:
    """Drop the gradient of a policy."""
    for parameter in policy.trainable_parameters():
        parameter.grad = None


def get_output_column(outputs: TokenOutputs, column: str) -> Tensor:
    """Return a column of outputs.

    Raises:
        ValueError: The policy has no critic.
    """
    values: Tensor | None = getattr(outputs, column)
    if values is None:
        raise ValueError("the policy has no critic")
    return values


def check_token_ids(segments: Sequence[Segment], policy: Policy) -> None:
    """Check that the model has an embedding of every token.

    Raises:
        ValueError: A token is not in its vocabulary.
    """
    vocabulary: int = policy.model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    for segment in segments:
        largest = max(segment.tokens.ids, default=0)
        if largest >= vocabulary:
            raise ValueError(
                f"{segment.trajectory_id}: token {largest} is not among the {vocabulary} the model knows; "
                "tokenizer and model do not match"
            )


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an error of an allocator of a CPU or GPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error) for words in _OUT_OF_MEMORY)


def _clipped_norm(parameters: Sequence[torch.nn.Parameter], max_norm: float) -> float:
    """Return the norm of the gradient, and scale a longer gradient down to the norm `most`."""
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm).item()
