"""Forward and backward passes over segments, in this process or distributed among ranks.

`ForwardPasses` is the protocol: `gradient` accumulates the gradient of a loss, `read` returns log-probs, entropies or
values, and `apply` makes an optimizer step. `LocalPasses` computes in this process;
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
"""Callback that receives every micro-batch of an update before its backward pass."""
Whose = Literal["policy", "reference", "teacher"]
"""Model whose outputs are computed."""
OutputColumn = Literal["logprobs", "entropies", "values"]
"""Name of a field of `TokenOutputs`."""
_FLOAT16_SCALE = 2.0**12
"""Factor of the loss in float16, without which gradients of activations would be 0."""
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Texts in errors of memory allocators. cuBLAS allocates its workspace outside PyTorch's allocator and reports only a
status."""


@dataclass(frozen=True, slots=True)
class GradientRequest:
    """Request of the gradient of a loss over segments; argument of `ForwardPasses.gradient`."""

    segments: Sequence[Segment]
    """Segments whose action tokens have a loss."""
    loss_of: TokenLossFunction
    """Computes the loss of each action token of a micro-batch."""
    divisor: int
    """Number of tokens by which the sum of the losses is divided."""
    temperature: float = 1.0
    """Divisor of the logits in sampling."""
    flat: Collection[int] = ()
    """Indices of segments without a gradient, which are computed for metrics only."""
    noise: EmbeddingNoise | None = None
    """Embedding noise of a second forward pass, for losses that compare the two; None: one pass."""
    watch: Watch | None = None
    """Receives every micro-batch, if the passes are computed in this process."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Request of model outputs at the action tokens of segments, for `ForwardPasses.read`."""

    segments: Sequence[Segment]
    """Segments whose action tokens are read."""
    columns: tuple[OutputColumn, ...] = ("logprobs",)
    """Outputs to return."""
    temperature: float = 1.0
    """Divisor of the logits in sampling."""
    whose: Whose = "policy"
    """Model whose outputs are returned."""


class ForwardPasses(Protocol):
    """Computes forward and backward passes of a policy in training, its reference and its teacher.

    `ModelTrainer` is the only caller.
    """

    token_budget: int
    """Maximum number of tokens of one forward pass. The caller halves it when memory runs out."""

    @property
    def optimizers(self) -> Optimizers:
        """Optimizers and learning rate schedule of the stage."""
        ...

    @property
    def layout(self) -> Layout:
        """Layout of the segments in a forward pass; see `token_outputs.py`."""
        ...

    @property
    def shares(self) -> bool:
        """Whether tokens that segments share are computed once."""
        ...

    def gradient(self, request: GradientRequest) -> MetricAccumulator:
        """Compute the gradient of a loss and add it to the accumulated gradient.

        Args:
            request: Segments, loss and divisor.

        Returns:
            Sums of the loss metrics.

        Raises:
            OutOfMemoryError, MemoryError, RuntimeError: If memory does not suffice for `token_budget`.
        """
        ...

    def read(self, request: ReadRequest) -> Mapping[str, list[Tensor]]:
        """Compute outputs of a model at action tokens, without gradients.

        Args:
            request: Segments, outputs and model.

        Returns:
            By output, [A, …] per segment, on the device of the policy.

        Raises:
            ValueError: If `values` are requested and the policy has no critic.
        """
        ...

    def apply(self) -> dict[str, float]:
        """Make an optimizer step from the accumulated gradient, and drop the gradient.

        Returns:
            Metrics. `update/nonfinite_fraction` is 1 if the gradient was not finite, in which case no step was made.
        """
        ...

    def norm(self) -> float:
        """Return the L2 norm of the accumulated gradient."""
        ...

    def drop(self) -> None:
        """Drop the accumulated gradient without an optimizer step."""
        ...

    def take_reference(self) -> None:
        """Update the reference model of all processes after its weights changed."""
        ...

    def peak_memory(self) -> float:
        """Return the peak memory of the computing devices, in GiB."""
        ...

    def utilization(self, flops: int, seconds: float) -> float:
        """Return the model FLOPs utilization (MFU), in [0, 1]: the fraction of the peak arithmetic.

        Args:
            flops: Floating-point operations of an update.
            seconds: Duration of the update, in seconds.
        """
        ...


def select_frozen_members(policy: Policy, members: Mapping[str, Member]) -> dict[str, Member]:
    """Return the members `reference` and `teacher`, as far as they are not the policy's own model."""
    frozen = {name: members[name] for name in ("reference", "teacher") if name in members}
    return {name: member for name, member in frozen.items() if member.policy.model is not policy.model}


class LocalPasses:
    """Forward and backward passes in this process; see `ForwardPasses`.

    Args:
        policy: Policy in training, whose weights are changed in place.
        settings: Optimizer, schedule, and layout of forward passes.
        members: Frozen models by the names `reference` and `teacher`. Without a reference, the policy without its
            adapters is the reference.
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
        """Forward pass of each model, by `Whose`."""
        for whose, member in select_frozen_members(policy, members).items():
            self.forwards[whose] = build_forward(member.policy.model, policy, settings, member.device)
        self.scale = loss_scale(policy)
        self._flops = Flops(policy.model, policy.dtype)

    @property
    def layout(self) -> Layout:
        """Layout of the segments in a forward pass."""
        return self.forwards["policy"].way.layout

    @property
    def shares(self) -> bool:
        """Whether tokens that segments share are computed once."""
        return self.forwards["policy"].shares

    def gradient(self, request: GradientRequest) -> MetricAccumulator:
        """Accumulate the gradient of a loss, micro-batch by micro-batch; see `ForwardPasses.gradient`."""
        tally, differentiate = MetricAccumulator(), Differentiation(self.forwards["policy"], self._flops, self.scale)
        for micro, has_gradient in self._split_micro_batches(request):
            differentiate(micro, request, tally, has_gradient=has_gradient)
            tally.oversized += len(micro.ids) > self.token_budget
        return tally

    @torch.no_grad()
    def read(self, request: ReadRequest) -> dict[str, list[Tensor]]:
        """Compute outputs at action tokens without gradients; see `ForwardPasses.read`."""
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
        """Make an optimizer step and drop the gradient; see `ForwardPasses.apply`."""
        return apply_gradient(
            self.policy, self.optimizers, self.settings, clip=_clipped_norm, measure_update=UpdateNorm
        )

    def norm(self) -> float:
        """Return the L2 norm of the accumulated gradient."""
        return _clipped_norm(self.policy.trainable_parameters(), math.inf) / self.scale

    def drop(self) -> None:
        """Drop the accumulated gradient."""
        drop_gradient(self.policy)

    def take_reference(self) -> None:
        """Do nothing: the reference is computed from its own weights. See `ForwardPasses.take_reference`."""

    def peak_memory(self) -> float:
        """Return the peak memory of the device, in GiB."""
        return peak_memory_gib(self.device)

    def utilization(self, flops: int, seconds: float) -> float:
        """Return the fraction of the device's peak arithmetic; see `ForwardPasses.utilization`."""
        return self._flops.utilization(flops, seconds)

    def _split_micro_batches(self, request: GradientRequest) -> Iterator[tuple[MicroBatch, bool]]:
        """Yield (micro-batch, whether it has a gradient), those with a gradient first."""
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
    """Forward and backward pass of one micro-batch, called in this process or on a rank."""

    forward: TokenForward
    flops: Flops
    scale: float
    """Factor of the loss; see `loss_scale`."""

    def __call__(
        self, micro: MicroBatch, request: GradientRequest, tally: MetricAccumulator, *, has_gradient: bool
    ) -> None:
        """Compute the loss of a micro-batch, and its gradient if `has_gradient`.

        The results are added to `tally`.
        """
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
    """Create the forward pass of a model, with the critic if the model is the policy's.

    Args:
        model: Model to compute: of the policy, the reference or the teacher.
        policy: Policy in training, which determines the precision.
        settings: Limits of memory, and activation checkpointing.
        device: Device of the computation; None: that of the weights.
    """
    return TokenForward(
        model,
        logit_bytes=settings.logits_memory_mb * 2**20,
        dtype=policy.dtype,
        checkpointing=settings.activation_checkpointing,
        critic=policy.critic if model is policy.model else None,
        device=device,
    )


def loss_scale(policy: Policy) -> float:
    """Return the factor of the loss of a policy: above 1 in float16, otherwise 1.

    The gradient is divided by the factor before it is applied.
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

    No step is made if the gradient is 0 or not finite.

    Args:
        policy: Policy with accumulated gradients.
        optimizers: Optimizers of the policy.
        settings: Maximum norm of the gradient.
        clip: Scales the gradient down to a maximum norm, and returns the norm that it had.
        measure_update: Starts to measure the change of parameters.

    Returns:
        Metrics of the step: `update/grad_norm`, `update/relative_norm`, `update/skipped_fraction`,
        `update/nonfinite_fraction`.
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
    """Drop the gradients of all trainable parameters of a policy."""
    for parameter in policy.trainable_parameters():
        parameter.grad = None


def get_output_column(outputs: TokenOutputs, column: str) -> Tensor:
    """Return one output of a forward pass by its name.

    Raises:
        ValueError: If `values` are requested and the policy has no critic.
    """
    values: Tensor | None = getattr(outputs, column)
    if values is None:
        raise ValueError("values: the policy has no critic; set critic: {} in the recipe")
    return values


def check_token_ids(segments: Sequence[Segment], policy: Policy) -> None:
    """Check that all token ids of segments are in the vocabulary of the model.

    Raises:
        ValueError: If a token id is out of range, because the tokenizer is not the model's.
    """
    vocabulary: int = policy.model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    for segment in segments:
        largest = max(segment.tokens.ids, default=0)
        if largest >= vocabulary:
            raise ValueError(
                f"{segment.trajectory_id}: token {largest} is not one of the model's {vocabulary} tokens: tokenizer "
                "and model do not match; use the model's own tokenizer"
            )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is one of a CPU or GPU memory allocator."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error) for words in _OUT_OF_MEMORY)


def _clipped_norm(parameters: Sequence[torch.nn.Parameter], max_norm: float) -> float:
    """Return the norm of the gradient, and scale the gradient down to at most `max_norm`."""
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm).item()
