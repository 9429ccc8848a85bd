"""Training of a policy on segments: log-probs, a loss per token, one gradient, one optimizer step.

The trainer does not depend on how a trajectory was sampled, nor on the process that computes its forward passes
(`forward_passes.py`).

Note:
    The mean over the tokens of an update must not depend on how the update is divided into micro-batches. The divisor
    is therefore counted over the whole update before the first backward pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from whetstone.algorithms import usual_entropy
from whetstone.errors import NonFiniteError
from whetstone.learning.forward_passes import (
    ForwardPasses,
    GradientRequest,
    LocalPasses,
    LossOf,
    ReadRequest,
    Watch,
    Whose,
    is_out_of_memory,
)
from whetstone.learning.gradient_noise import GradientNoise
from whetstone.learning.noise import EmbeddingNoise
from whetstone.learning.optimizer import Optimizers
from whetstone.learning.packing import MicroBatch, pack
from whetstone.learning.tally import Tally
from whetstone.learning.token_outputs import Layout, TokenOutputs
from whetstone.policies import Policy
from whetstone.recipe import OptimizerSettings
from whetstone.trajectory import Segment

T = TypeVar("T")
SMALLEST_BUDGET = 64
"""Tokens of a pass that are not halved any more."""
_ANY_LENGTH = 2**62


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
    """A policy in training and its optimizer.

    Args:
        policy: Its weights are changed in place.
        settings: Optimizer, schedule, and layout of forward passes.
        reference: Frozen reference model; None if there is none, or if it is the policy without its adapters.
        teacher: Frozen teacher model; None if there is none.
        own_teacher: Whether the teacher is the policy.
        process: Process reward model that is trained with the policy; None: there is none.
        reference_device: Device that computes the reference; None: its own.
        teacher_device: Same for the teacher.
        passes: Computes the forward passes, those of reference and teacher included; None: this process.
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
        passes: ForwardPasses | None = None,
    ) -> None:
        self.policy, self.settings, self.reference, self.process = policy, settings, reference, process
        self.passes = passes or LocalPasses(
            policy,
            settings,
            reference=reference,
            teacher=teacher,
            reference_device=reference_device,
            teacher_device=teacher_device,
        )
        self.nonfinite_in_a_row = 0
        self.out_of_memory = 0
        """Number of times that memory did not suffice."""
        self.moved_reference = False
        """Whether the reference differs from the one at the start of the stage."""
        self.has_teacher = own_teacher or teacher is not None
        self.watch: Watch | None = None
        """Receives every micro-batch of an update before its backward pass, to explain the update."""
        self.entropies = PastEntropies()
        self.gradient_noise = GradientNoise()

    @property
    def optimizers(self) -> Optimizers:
        """Optimizers and schedule of the stage."""
        return self.passes.optimizers

    @property
    def token_budget(self) -> int:
        """Maximum number of tokens of one forward pass; halved if memory did not suffice."""
        return self.passes.token_budget

    @property
    def layout(self) -> Layout:
        """Layout of the segments in a forward pass."""
        return self.passes.layout

    @property
    def shares(self) -> bool:
        """Whether tokens that segments share are computed once."""
        return self.passes.shares

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
        request = GradientRequest(segments, loss_of, divisor, temperature, flat, noise, self.watch)
        tally: Tally | None = None
        while tally is None:
            with self._smaller_if_full():
                tally = self.passes.gradient(request)
        metrics = tally.metrics()
        self.optimizers.critic_only = critic_only
        try:
            agreed()
        except BaseException:
            self.passes.drop()
            raise
        metrics |= self.passes.apply()
        self._note_finite(not metrics.get("update/nonfinite_fraction"))
        seconds = time.perf_counter() - began
        return metrics | {
            "update/tokens": float(total),
            "update/learning_rate": self.optimizers.rate(),
            "throughput/update_tokens_per_second": tally.standing / seconds,
            "throughput/mfu": self.passes.utilization(tally.flops, seconds),
            "memory/peak_gib": self.passes.peak_memory(),
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
        """Return the norm of the gradient of the loss over `segments`, and drop the gradient; see `step`."""
        try:
            self._gradient(GradientRequest(segments, loss_of, divisor, temperature, noise=noise))
            return self.passes.norm()
        finally:
            self.passes.drop()

    def look(
        self, segments: Sequence[Segment], loss_of: LossOf, *, temperature: float = 1.0, divisor: int
    ) -> dict[str, float]:
        """Return the loss metrics of `step`, without a gradient or a step."""
        everything = range(len(segments))
        return self._gradient(GradientRequest(segments, loss_of, divisor, temperature, everything)).metrics()

    def logprobs(self, segments: Sequence[Segment], *, temperature: float = 1.0, of: Whose = "policy") -> list[Tensor]:
        """Return [A] log-probs of each segment's action tokens, in their order, on the policy's device.

        Args:
            of: Whose log-probs: those of the policy in training, of the reference, or of the teacher.

        Raises:
            ValueError: There is no teacher.
        """
        if of == "teacher" and not self.has_teacher:
            raise ValueError("there is no teacher")
        return self._read(ReadRequest(segments, temperature=temperature, whose=of))["logprobs"]

    def values(self, segments: Sequence[Segment], *, temperature: float = 1.0) -> list[Tensor]:
        """Return [A, heads] values of the critics of the state before each action token of each segment."""
        return self._read(ReadRequest(segments, ("values",), temperature))["values"]

    def show(
        self,
        segments: Sequence[Segment],
        to: Callable[[TokenOutputs, MicroBatch], None],
        *,
        temperature: float = 1.0,
    ) -> None:
        """Pass log-probs and entropies of every segment, at the current weights, to a function, as a micro-batch."""
        found = self._read(ReadRequest(segments, ("logprobs", "entropies"), temperature))
        for i, segment in enumerate(segments):
            if action_tokens(segment):
                outputs = TokenOutputs(found["logprobs"][i], found["entropies"][i])
                (micro,) = pack([segment], token_budget=_ANY_LENGTH, device=outputs.logprobs.device)
                to(outputs, replace(micro, indices=(i,)))

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
            self.passes.take_reference()

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
        self.passes.take_reference()

    def _gradient(self, request: GradientRequest) -> Tally:
        return self._within_memory(lambda: self.passes.gradient(request))

    def _read(self, request: ReadRequest) -> Mapping[str, list[Tensor]]:
        return self._within_memory(lambda: self.passes.read(request))

    def _within_memory(self, compute: Callable[[], T]) -> T:
        """Return the result of `compute`, repeated with fewer tokens per forward pass until it fits into memory."""
        while True:
            with self._smaller_if_full():
                return compute()

    @contextmanager
    def _smaller_if_full(self) -> Iterator[None]:
        """Halve the tokens of a forward pass, and suppress the error, if memory does not suffice for the block."""
        try:
            yield
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            self.passes.drop()
            if not is_out_of_memory(error) or self.token_budget <= SMALLEST_BUDGET:
                raise
            self.passes.token_budget //= 2
            self.out_of_memory += 1

    def _note_finite(self, finite: bool) -> None:
        self.nonfinite_in_a_row = 0 if finite else self.nonfinite_in_a_row + 1
        if self.nonfinite_in_a_row >= self.settings.max_nonfinite_updates:
            raise NonFiniteError(
                f"the gradient was not finite {self.nonfinite_in_a_row} updates in a row; none of them was applied. "
                "A lower learning_rate or max_grad_norm, or policy.dtype: float32, is the usual cure"
            )


def action_tokens(segment: Segment) -> int:
    """How many tokens of a segment can be trained; its first cannot, since nothing predicts it."""
    return sum(segment.action_mask[1:])


def action_places(segment: Segment) -> list[int]:
    """[A] where they stand."""
    return [place for place, trained in enumerate(segment.action_mask) if trained and place > 0]
