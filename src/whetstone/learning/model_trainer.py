"""How does a policy learn from segments? Log-probs, a loss per token, one gradient, one step.

The learner knows nothing of how a trajectory came to be.

Easy to get wrong: the mean over the tokens of an update must not depend on how it was cut into micro-batches.
The divisor is counted over the whole update before the first backward pass. And a token that several segments
share is computed once but counts once for each: its log-prob is handed to the loss of every one of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from whetstone.algorithms import TokenLoss, usual_entropy
from whetstone.errors import NonFiniteError
from whetstone.learning.gradient_noise import GradientNoise
from whetstone.learning.noise import EmbeddingNoise
from whetstone.learning.optimizer import Optimizers
from whetstone.learning.packing import MicroBatch, pack
from whetstone.learning.resources import Flops, Movement, peak_memory_gib
from whetstone.learning.tally import Tally
from whetstone.learning.token_outputs import TokenForward, TokenOutputs
from whetstone.policies import Policy, adapters_off
from whetstone.recipe import OptimizerSettings
from whetstone.trajectory import Segment

T = TypeVar("T")

LossOf = Callable[[TokenOutputs, MicroBatch], TokenLoss]
"""(what the policy says of the action tokens, with gradient; the micro-batch) → a loss per token."""

SMALLEST_BUDGET = 64
"""Tokens of a pass that are not halved any more."""

_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Texts of errors of allocators. cuBLAS takes its workspace outside PyTorch's allocator and names only a status."""
_FLOAT16_SCALE = 2.0**12
"""What a loss in float16 is multiplied by on its way back: gradients of its activations would be 0 without."""


class Companion(Protocol):
    """A model that learns beside the policy."""

    @property
    def learner(self) -> ModelTrainer:
        """What computes it."""
        ...

    def learn(self, columns: Any) -> dict[str, float]:
        """Learn from a step's columns; returns metrics."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Its weights and optimiser."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        ...


class PastEntropies:
    """What entropy was at each turn in recent updates."""

    def __init__(self, window: int = 10) -> None:
        self.window = window
        self.updates: list[dict[int, tuple[float, int]]] = []
        """By turn, (sum, tokens), the oldest first."""

    def add(self, found: dict[int, tuple[float, int]]) -> None:
        """Remember one more update."""
        self.updates = [*self.updates, found][-self.window :]

    def usual(self) -> Tensor:
        """[turns] the mean over the window; NaN for a turn no update had."""
        turns = 1 + max((turn for update in self.updates for turn in update), default=-1)
        past = torch.zeros(2, max(1, len(self.updates)), turns, dtype=torch.float64)
        for k, update in enumerate(self.updates):
            for turn, (total, count) in update.items():
                past[0, k, turn], past[1, k, turn] = total, count
        return usual_entropy(past[0], past[1])


class ModelTrainer:
    """The policy in training and its optimiser.

    Args:
        policy: Its weights are changed in place.
        settings: Optimiser, schedule, and how a forward pass is computed.
        reference: A frozen model to hold on to; None where there is none, or where it is the policy itself with
            its adapters off.
        teacher: A frozen model to learn from; None where there is none.
        own_teacher: Whether the teacher is the policy itself.
        process: A model that learns to tell good turns from bad beside the policy; None where there is none.
        reference_device: Where the reference is computed, brought there for its passes; None: where it lies.
        teacher_device: As for the reference.
    """

    def __init__(
        self,
        policy: Policy,
        settings: OptimizerSettings,
        *,
        reference: torch.nn.Module | None = None,
        teacher: torch.nn.Module | None = None,
        own_teacher: bool = False,
        process: Companion | None = None,
        reference_device: torch.device | None = None,
        teacher_device: torch.device | None = None,
    ) -> None:
        self.policy, self.settings = policy, settings
        self.optimizers = Optimizers(policy, settings)
        self.nonfinite_in_a_row = 0
        self.token_budget = settings.micro_batch_tokens
        """Tokens of one forward pass; halved where memory did not suffice."""
        self.out_of_memory = 0
        """How often it did not."""
        self._device = next(policy.model.parameters()).device
        self._vocabulary: int = policy.model.get_input_embeddings().num_embeddings  # type: ignore[operator]
        self._forward = self._forward_of(policy.model)
        self.reference = reference
        self._reference = self._forward_of(reference, reference_device) if reference is not None else None
        self._teacher = self._forward_of(teacher, teacher_device) if teacher is not None else None
        self.moved_reference = False
        """Whether the reference is no longer the one it began as."""
        self.own_teacher, self.process = own_teacher, process
        self.watch: Callable[[Sequence[Segment], TokenOutputs, MicroBatch, TokenLoss], None] | None = None
        """Shown every micro-batch of an update before its backward pass, for whoever explains it."""
        self.entropies = PastEntropies()
        self.gradient_noise = GradientNoise()
        self.layout = self._forward.way.layout
        """Layout of the segments in a forward pass: `tree`, `padded` or `sequential`."""
        self.shares = self._forward.shares
        """Whether tokens that segments share are computed once."""
        self._scale = _FLOAT16_SCALE if policy.dtype == torch.float16 else 1.0
        self._flops = Flops(policy.model, policy.dtype)

    def step(
        self,
        segments: Sequence[Segment],
        loss_of: LossOf,
        *,
        temperature: float = 1.0,
        divisor: int | None = None,
        flat: Collection[int] = (),
        critic_only: bool = False,
        agreed: Callable[[], None] = lambda: None,
        noise: EmbeddingNoise | None = None,
    ) -> dict[str, float]:
        """One optimiser step on the mean loss of all action tokens in `segments`.

        Without an action token, or where the gradient is 0 (all advantages 0), nothing is updated; where the
        gradient is not finite, neither. `update/skipped_fraction` is then 1.

        `loss/total` and its terms (`loss/…`) are sums over the tokens, divided by the divisor. Every other metric is a
        mean over the policy's own action tokens, whatever their credit, or over an expert's if there are no others.

        Args:
            temperature: What the sampler divided its logits by; the log-probs here are under the same.
            divisor: Tokens the loss is divided by; by default those in `segments`.
            flat: Which of the segments have no gradient, whatever the weights: they are computed once, for what is
                reported, and not differentiated.
            critic_only: Whether only critics take a step.
            agreed: Called when the gradient is there and before it is applied; what it raises is raised, and nothing
                is applied.
            noise: What a second pass's embeddings have, for losses that compare with it.

        Where memory does not suffice, the update is made again in halves as large, and so are all that follow.

        Raises:
            NonFiniteError: The gradient was not finite so many updates in a row as the recipe bears.
        """
        total = sum(map(action_tokens, segments))
        if total == 0:
            return {"update/skipped_fraction": 1.0, "update/tokens": 0.0}
        divisor = total if divisor is None else divisor
        began = time.perf_counter()
        tally: Tally | None = None
        while tally is None:
            with self._smaller_if_full():
                tally = self._gradient(segments, loss_of, temperature, divisor, flat, noise)
        metrics = tally.metrics()
        self.optimizers.critic_only = critic_only
        try:
            agreed()
        except BaseException:
            self._forget_gradient()
            raise
        metrics |= self._apply_gradient()
        seconds = time.perf_counter() - began
        return metrics | {
            "update/tokens": float(total),
            "update/learning_rate": self.optimizers.rate(),
            "throughput/update_tokens_per_second": tally.standing / seconds,
            "throughput/mfu": self._utilization(tally.flops, seconds),
            "memory/peak_gib": self._peak_memory(),
            "memory/micro_batch_tokens": float(self.token_budget),
        }

    def gradient_norm(
        self,
        segments: Sequence[Segment],
        loss_of: LossOf,
        *,
        temperature: float = 1.0,
        divisor: int,
        noise: EmbeddingNoise | None = None,
    ) -> float:
        """Return the norm of the gradient of the loss over `segments`, and keep nothing of it; see `step`."""
        watch, self.watch = self.watch, None
        try:
            self._within_memory(lambda: self._gradient(segments, loss_of, temperature, divisor, (), noise))
            return self._clipped_norm(self.policy.trained(), math.inf) / self._scale
        finally:
            self.watch = watch
            self._forget_gradient()

    def _gradient(
        self,
        segments: Sequence[Segment],
        loss_of: LossOf,
        temperature: float,
        divisor: int,
        flat: Collection[int],
        noise: EmbeddingNoise | None,
    ) -> Tally:
        """Forward and backward over all segments; see `_learn`."""
        tally = Tally()
        for micro, sloped in self._passes(segments, flat):
            self._learn(
                micro, loss_of, tally, segments=segments, sloped=sloped, temperature=temperature, divisor=divisor,
                noise=noise,
            )  # fmt: skip
        return tally

    def _learn(
        self,
        micro: MicroBatch,
        loss_of: LossOf,
        tally: Tally,
        *,
        segments: Sequence[Segment],
        sloped: bool,
        temperature: float,
        divisor: int,
        noise: EmbeddingNoise | None,
    ) -> None:
        """Forward over a micro-batch, backward where it is `sloped`; what came of it goes into the tally."""
        with torch.set_grad_enabled(sloped):
            outputs = self._forward(micro, temperature, noise=noise)
            per_token = loss_of(outputs, micro)
            if self.watch is not None:
                self.watch(segments, outputs, micro, per_token)
            if sloped:
                (per_token.loss.sum() * self._scale / divisor).backward()  # type: ignore[no-untyped-call]
        tally.add(per_token, outputs, micro, divisor)
        tally.flops += self._flops.of(micro, backward=sloped) * (1 if noise is None else 2)
        tally.over += len(micro.ids) > self.token_budget

    def _passes(self, segments: Sequence[Segment], flat: Collection[int]) -> Iterator[tuple[MicroBatch, bool]]:
        """(a micro-batch, whether it has a gradient) of each, those that have one first."""
        still = sorted(set(flat))
        sloped = [i for i in range(len(segments)) if i not in set(still)]
        for places, has_gradient in ((sloped, True), (still, False)):
            for micro in self._packed([segments[i] for i in places]):
                yield replace(micro, indices=tuple(places[i] for i in micro.indices)), has_gradient

    def look(
        self, segments: Sequence[Segment], loss_of: LossOf, *, temperature: float = 1.0, divisor: int
    ) -> dict[str, float]:
        """What `step` reports of losses, without a gradient or a step."""
        everything = range(len(segments))
        tally = self._within_memory(lambda: self._gradient(segments, loss_of, temperature, divisor, everything, None))
        return tally.metrics()

    @torch.no_grad()
    def logprobs(
        self,
        segments: Sequence[Segment],
        *,
        temperature: float = 1.0,
        of: Literal["policy", "reference", "teacher"] = "policy",
    ) -> list[Tensor]:
        """[A] log-probs of each segment's action tokens, in their order, on the policy's device.

        Args:
            of: Under the policy in training, the one that is held on to, or the teacher.
        """
        other = {"policy": None, "reference": self._reference, "teacher": self._teacher}[of]
        if of == "teacher" and other is None and not self.own_teacher:
            raise ValueError("there is no teacher")
        forward = other if other is not None else self._forward
        with adapters_off(forward.network, when=of == "reference" and other is None), forward.at_work():
            return self._read(segments, lambda micro: forward(micro, temperature).logprobs, device=forward.device)

    @torch.no_grad()
    def values(self, segments: Sequence[Segment], *, temperature: float = 1.0) -> list[Tensor]:
        """[A, heads] what the critic says of the state in front of each action token of each segment."""

        def read(micro: MicroBatch) -> Tensor:
            values = self._forward(micro, temperature).values
            if values is None:
                raise ValueError("the policy has no critic")
            return values

        return self._read(segments, read)

    @property
    def heads(self) -> tuple[str, ...]:
        """What its critic foretells, column by column."""
        return self.policy.critic.heads if self.policy.critic is not None else ()

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state and what else is remembered; the weights are saved as a model folder."""
        process = self.process.state_dict() if self.process is not None else None
        found = self.optimizers.state_dict() | {"entropies": self.entropies.updates, "process": process}
        found["gradient_noise"] = self.gradient_noise.state_dict()
        if self.reference is not None and self.moved_reference:
            found["reference"] = {name: each.detach() for name, each in self.reference.named_parameters()}
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.optimizers.load_state_dict(state)
        self.entropies.updates = list(state.get("entropies", ()))
        self.gradient_noise.load_state_dict(state.get("gradient_noise"))
        if self.process is not None:
            self.process.load_state_dict(state["process"])
        if self.reference is not None and "reference" in state:
            with torch.no_grad():
                for name, each in self.reference.named_parameters():
                    each.copy_(state["reference"][name])
            self.moved_reference = True

    @torch.no_grad()
    def move_reference(self, alpha: float) -> None:
        """Mix the policy into the reference: π_ref ← α π + (1 − α) π_ref, weight by weight.

        Args:
            alpha: 1 puts the policy in its place.

        Source: T1 2025, arXiv:2501.11651, whose reference is a moving average of the policy; the rule and its names are
            those of TR-DPO 2024, arXiv:2404.09656, and of TRL's `sync_ref_model`.
        """
        if self.reference is None:
            raise ValueError("there is no reference")
        present = dict(self.policy.model.named_parameters())
        for name, each in self.reference.named_parameters():
            now = present[name].detach().to(each)
            each.copy_(now if alpha == 1 else each.mul(1 - alpha).add(now, alpha=alpha))
        self.moved_reference = True

    def _forward_of(self, model: torch.nn.Module, device: torch.device | None = None) -> TokenForward:
        return TokenForward(
            model,
            logit_bytes=self.settings.logits_memory_mb * 2**20,
            dtype=self.policy.dtype,
            checkpointing=self.settings.activation_checkpointing,
            critic=self.policy.critic if model is self.policy.model else None,
            device=device,
        )

    def _check_ids(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            largest = max(segment.tokens.ids, default=0)
            if largest >= self._vocabulary:
                raise ValueError(
                    f"{segment.trajectory_id}: token {largest} is not among the {self._vocabulary} the model knows; "
                    "tokenizer and model do not match"
                )

    def _packed(self, segments: Sequence[Segment], device: torch.device | None = None) -> Iterable[MicroBatch]:
        self._check_ids(segments)
        return pack(
            segments,
            token_budget=self.token_budget,
            device=self._device if device is None else device,
            share=self.settings.prefix_sharing and self.shares,
        )

    @torch.no_grad()
    def show(
        self,
        segments: Sequence[Segment],
        to: Callable[[TokenOutputs, MicroBatch], None],
        *,
        temperature: float = 1.0,
    ) -> None:
        """Show every micro-batch of the segments, as the weights have it now, to somebody; more than once where memory
        did not suffice."""

        def whole() -> None:
            for micro in self._packed(segments):
                to(self._forward(micro, temperature), micro)

        self._within_memory(whole)

    def _read(
        self, segments: Sequence[Segment], of: Callable[[MicroBatch], Tensor], *, device: torch.device | None = None
    ) -> list[Tensor]:
        """[A, …] of each segment, by what `of` says of a micro-batch on `device`; None: the policy's."""

        def whole() -> list[Tensor]:
            found = [torch.empty(0, device=self._device)] * len(segments)
            for micro in self._packed(segments, device):
                for i, part in micro.by_segment(of(micro).to(self._device)):
                    found[i] = part
            return found

        return self._within_memory(whole)

    def _within_memory(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, repeated with fewer tokens per forward pass until it fits into memory."""
        while True:
            with self._smaller_if_full():
                return work()

    @contextmanager
    def _smaller_if_full(self) -> Iterator[None]:
        """Halve the tokens of a forward pass, and suppress the error, if memory does not suffice for the block."""
        try:
            yield
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            self._forget_gradient()
            if not is_out_of_memory(error) or self.token_budget <= SMALLEST_BUDGET:
                raise
            self.token_budget //= 2
            self.out_of_memory += 1

    def _forget_gradient(self) -> None:
        for parameter in self.policy.trained():
            parameter.grad = None

    def _apply_gradient(self) -> dict[str, float]:
        parameters = self.policy.trained()
        if self._scale != 1.0:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad /= self._scale
        norm = self._clipped_norm(parameters, self.settings.max_grad_norm)
        moves = math.isfinite(norm) and norm > 0
        metrics = {"update/grad_norm": norm} if math.isfinite(norm) else {}
        if moves:
            movement = self._movement(parameters)
            self.optimizers.update()
            metrics["update/relative_norm"] = movement.ratio()
        self._forget_gradient()
        self._note_finite(math.isfinite(norm))
        return metrics | {
            "update/skipped_fraction": float(not moves),
            "update/nonfinite_fraction": float(not math.isfinite(norm)),
        }

    def _note_finite(self, finite: bool) -> None:
        self.nonfinite_in_a_row = 0 if finite else self.nonfinite_in_a_row + 1
        if self.nonfinite_in_a_row >= self.settings.max_nonfinite_updates:
            raise NonFiniteError(
                f"the gradient was not finite {self.nonfinite_in_a_row} updates in a row; none of them was applied. "
                "A lower learning_rate or max_grad_norm, or policy.dtype: float32, is the usual cure"
            )

    def _peak_memory(self) -> float:
        """In GiB, of what computes."""
        return peak_memory_gib(self._device)

    def _utilization(self, flops: int, seconds: float) -> float:
        return self._flops.utilization(flops, seconds)

    def _clipped_norm(self, parameters: Sequence[torch.nn.Parameter], most: float) -> float:
        """Return the norm of the gradient, and scale a longer gradient down to the norm `most`."""
        return torch.nn.utils.clip_grad_norm_(parameters, most).item()

    def _movement(self, parameters: Sequence[torch.nn.Parameter]) -> Movement:
        """Watches how far they move from here on."""
        return Movement(parameters)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it is what a CPU's or GPU's allocator says when there is none left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error) for words in _OUT_OF_MEMORY)


def action_tokens(segment: Segment) -> int:
    """How many tokens of a segment can be trained; its first cannot, since nothing predicts it."""
    return sum(segment.action_mask[1:])


def action_places(segment: Segment) -> list[int]:
    """[A] where they stand."""
    return [place for place, trained in enumerate(segment.action_mask) if trained and place > 0]
