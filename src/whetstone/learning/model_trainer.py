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
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from whetstone.algorithms import usual_entropy
from whetstone.errors import NonFiniteError
from whetstone.inference import MEMBERS, Member, load_member_states, member_states
from whetstone.learning.embedding_noise import EmbeddingNoise
from whetstone.learning.forward_passes import (
    ForwardPasses,
    GradientRequest,
    LocalPasses,
    ReadRequest,
    TokenLossFunction,
    Watch,
    Whose,
    is_out_of_memory,
)
from whetstone.learning.gradient_noise import GradientNoise
from whetstone.learning.metric_accumulator import MetricAccumulator
from whetstone.learning.optimizer import Optimizers
from whetstone.learning.packing import MicroBatch, pack_segments
from whetstone.learning.token_outputs import Layout, TokenOutputs
from whetstone.policies import Policy
from whetstone.recipe import OptimizerSettings
from whetstone.trajectory import Segment

if TYPE_CHECKING:
    from whetstone.learning.implicit_prm import ProcessModel

T = TypeVar("T")
PROCESS = "implicit_prm"
"""Name of the member that is the implicit process reward model."""
SMALLEST_BUDGET = 64
"""Number of tokens of a forward pass below which the budget is not halved again."""
_ANY_LENGTH = 2**62


class PastEntropies:
    """Mean entropies at each turn in recent updates, for losses that read `usual_entropies`.

    Args:
        window: Number of updates that are kept.
    """

    def __init__(self, window: int = 10) -> None:
        self.window = window
        self.updates: list[dict[int, tuple[float, int]]] = []
        """Per update, (sum of entropies, number of tokens) by turn, the oldest update first."""

    def add(self, entropies: dict[int, tuple[float, int]]) -> None:
        """Add the entropies of an update, (sum, number of tokens) by turn, and drop the oldest update."""
        self.updates = [*self.updates, entropies][-self.window :]

    def mean_entropies(self) -> Tensor:
        """Return [turns] mean entropies over the window; NaN for a turn that no update had."""
        turns = 1 + max((turn for update in self.updates for turn in update), default=-1)
        past = torch.zeros(2, max(1, len(self.updates)), turns, dtype=torch.float64)
        for k, update in enumerate(self.updates):
            for turn, (total, count) in update.items():
                past[0, k, turn], past[1, k, turn] = total, count
        return usual_entropy(past[0], past[1])


class ModelTrainer:
    """Policy in training with its optimizer: computes log-probs and makes optimizer steps.

    Created by a learner for each stage.

    Args:
        policy: Policy whose weights are changed in place.
        settings: Optimizer, schedule, and layout of forward passes.
        members: Other models by name: `reference`, `teacher`, which can be the policy itself, and `implicit_prm`.
            Without a reference, it is the policy without its adapters.
        passes: Computes the forward passes, also those of reference and teacher; None: this process does.
    """

    def __init__(
        self,
        policy: Policy,
        settings: OptimizerSettings,
        *,
        members: Mapping[str, Member] = MappingProxyType({}),
        passes: ForwardPasses | None = None,
    ) -> None:
        self.policy, self.settings, self.members = policy, settings, members
        self.reference = members["reference"].policy.model if "reference" in members else None
        self.process: ProcessModel | None = members[PROCESS].learner if PROCESS in members else None
        self.passes = passes or LocalPasses(policy, settings, members=members)
        self.nonfinite_in_a_row = 0
        self.applied_steps = 0
        """Number of optimizer steps since this object was built; one that failed while it changed weights counts."""
        self.out_of_memory = 0
        """Number of times that memory did not suffice for a forward pass."""
        self.moved_reference = False
        """Whether the reference differs from the one at the start of the stage."""
        self.watch: Watch | None = None
        """Receives every micro-batch of an update before its backward pass, to explain the update; None: nothing
        does."""
        self.entropies = PastEntropies()
        self.gradient_noise = GradientNoise()

    @property
    def optimizers(self) -> Optimizers:
        """Optimizers and learning rate schedule of the stage."""
        return self.passes.optimizers

    @property
    def token_budget(self) -> int:
        """Maximum number of tokens of one forward pass; halved when memory runs out."""
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
        loss_of: TokenLossFunction,
        *,
        temperature: float = 1.0,
        divisor: int | None = None,
        flat: Collection[int] = (),
        critic_only: bool = False,
        agreed: Callable[[], None] = lambda: None,
        noise: EmbeddingNoise | None = None,
    ) -> dict[str, float]:
        """Make one optimizer step on the mean loss of all action tokens of `segments`.

        No step is made without an action token, if the gradient is 0 (all advantages 0), or if it is not finite.
        `update/skipped_fraction` is then 1.

        If memory does not suffice, the update is repeated with passes of half the size, and later updates use that size
        too.

        Args:
            segments: Segments of the update.
            loss_of: Computes the loss of each action token of a micro-batch.
            temperature: Divisor of the logits in sampling; log-probs are computed with the same.
            divisor: Number of tokens by which the loss is divided; None: the number of action tokens in `segments`.
            flat: Indices of segments without a gradient, whatever the weights: they are computed once, for metrics
                only.
            critic_only: Whether only critics are updated.
            agreed: Called after the gradient is computed and before it is applied. If it raises an error, nothing is
                applied.
            noise: Embedding noise of a second forward pass, for losses that compare the two; None: one pass.

        Returns:
            Metrics. `loss/total` and its terms (`loss/…`) are sums over the tokens, divided by the divisor. Every other
            metric is a mean over the policy's own action tokens, whatever their credit, or over an expert's if there
            are no others.

        Raises:
            NonFiniteError: If the gradient was not finite in as many consecutive updates as the recipe allows.
        """
        total = sum(map(action_tokens, segments))
        if total == 0:
            return {"update/skipped_fraction": 1.0, "update/tokens": 0.0}
        divisor = total if divisor is None else divisor
        began = time.perf_counter()
        request = GradientRequest(segments, loss_of, divisor, temperature, flat, noise, self.watch)
        tally: MetricAccumulator | None = None
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
        self.applied_steps += 1  # before the call: an error in it can leave weights changed
        metrics |= self.passes.apply()
        self.applied_steps -= int(metrics.get("update/skipped_fraction", 0))
        self._note_finite(not metrics.get("update/nonfinite_fraction"))
        seconds = time.perf_counter() - began
        return metrics | {
            "update/tokens": float(total),
            "update/learning_rate": self.optimizers.rate(),
            "throughput/update_tokens_per_second": tally.segment_tokens / seconds,
            "throughput/mfu": self.passes.utilization(tally.flops, seconds),
            "memory/peak_gib": self.passes.peak_memory(),
            "memory/micro_batch_tokens": float(self.token_budget),
        }

    def gradient_norm(
        self,
        segments: Sequence[Segment],
        loss_of: TokenLossFunction,
        *,
        temperature: float = 1.0,
        divisor: int,
        noise: EmbeddingNoise | None = None,
    ) -> float:
        """Compute the norm of the gradient of a loss, without an optimizer step.

        Args:
            segments: Segments of the loss.
            loss_of: Computes the loss of each action token of a micro-batch.
            temperature: Divisor of the logits in sampling.
            divisor: Number of tokens by which the loss is divided.
            noise: Embedding noise; see `step`.
        """
        try:
            self._gradient(GradientRequest(segments, loss_of, divisor, temperature, noise=noise))
            return self.passes.norm()
        finally:
            self.passes.drop()

    def evaluate_loss(
        self, segments: Sequence[Segment], loss_of: TokenLossFunction, *, temperature: float = 1.0, divisor: int
    ) -> dict[str, float]:
        """Compute the loss metrics of `step`, without a gradient or an optimizer step.

        Args:
            segments: Segments of the loss.
            loss_of: Computes the loss of each action token of a micro-batch.
            temperature: Divisor of the logits in sampling.
            divisor: Number of tokens by which the loss is divided.
        """
        everything = range(len(segments))
        return self._gradient(GradientRequest(segments, loss_of, divisor, temperature, everything)).metrics()

    def logprobs(self, segments: Sequence[Segment], *, temperature: float = 1.0, of: Whose = "policy") -> list[Tensor]:
        """Compute [A] log-probs of each segment's action tokens, on the policy's device.

        Args:
            segments: Segments.
            temperature: Divisor of the logits in sampling.
            of: Model: the policy in training, the reference, or the teacher.

        Raises:
            ValueError: If there is no teacher.
        """
        if of == "teacher" and "teacher" not in self.members:
            raise ValueError("there is no teacher; set `teacher` in the recipe")
        return self._read(ReadRequest(segments, temperature=temperature, whose=of))["logprobs"]

    def values(self, segments: Sequence[Segment], *, temperature: float = 1.0) -> list[Tensor]:
        """Compute [A, heads] critic values of the state before each action token, per segment."""
        return self._read(ReadRequest(segments, ("values",), temperature))["values"]

    def show(
        self,
        segments: Sequence[Segment],
        to: Callable[[TokenOutputs, MicroBatch], None],
        *,
        temperature: float = 1.0,
    ) -> None:
        """Pass log-probs and entropies of segments at the current weights to a function.

        Args:
            segments: Segments.
            to: Receives outputs and micro-batch of all segments with action tokens.
            temperature: Divisor of the logits in sampling.
        """
        columns = self._read(ReadRequest(segments, ("logprobs", "entropies"), temperature))
        device = next(self.policy.model.parameters()).device
        for micro in pack_segments(segments, token_budget=_ANY_LENGTH, device=device, share=False):
            joined = {name: torch.cat([of[i] for i in micro.indices]).to(device) for name, of in columns.items()}
            to(TokenOutputs(joined["logprobs"], joined["entropies"]), micro)

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the critic's heads, in the order of the value columns; empty without a critic."""
        return self.policy.critic.heads if self.policy.critic is not None else ()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of optimizer, metrics and other members, for a checkpoint.

        The weights of the policy are saved separately, as a model folder.
        """
        state = self.optimizers.state_dict() | {"entropies": self.entropies.updates}
        state[MEMBERS] = member_states(self.members)
        state["gradient_noise"] = self.gradient_noise.state_dict()
        if self.reference is not None and self.moved_reference:
            state["reference"] = {name: each.detach() for name, each in self.reference.named_parameters()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.optimizers.load_state_dict(state)
        self.entropies.updates = list(state.get("entropies", ()))
        self.gradient_noise.load_state_dict(state.get("gradient_noise"))
        load_member_states(self.members, state)
        if self.process is not None and state.get("process") is not None:  # of a checkpoint without `members`
            self.process.trainer.policy.model.load_state_dict(state["process"]["weights"])
            self.process.load_state_dict(state["process"]["optimizer"])
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

    def _gradient(self, request: GradientRequest) -> MetricAccumulator:
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
        """Halve the token budget and suppress the error if memory does not suffice within the block."""
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
                f"the gradient was not finite {self.nonfinite_in_a_row} updates in a row; none of them was applied; "
                "reduce learning_rate or max_grad_norm, or set policy.dtype: float32"
            )


def action_tokens(segment: Segment) -> int:
    """Return the number of action tokens of a segment that can be trained.

    An action token at the start of a segment cannot, since no token predicts it.
    """
    return sum(segment.action_mask[1:])


def get_action_positions(segment: Segment) -> list[int]:
    """Return the positions of the A trainable action tokens of a segment."""
    return [place for place, trained in enumerate(segment.action_mask) if trained and place > 0]
