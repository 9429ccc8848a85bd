"""Metric sums over the forward passes of an update, which do not depend on how it is divided into passes.

Note:
    A mean of means is not the mean. Sums and counts are kept separately until all passes are complete.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from whetstone.algorithms import TokenLoss

if TYPE_CHECKING:
    from whetstone.learning.packing import MicroBatch
    from whetstone.learning.token_outputs import TokenOutputs


@dataclass(slots=True)
class MetricAccumulator:
    """Sums of losses and metrics over the forward passes of an update.

    Created by `ForwardPasses.gradient`; ranks send theirs to be merged.
    """

    losses: dict[str, float] = field(default_factory=lambda: {"loss/total": 0.0})
    """Sums of losses by name, divided by the update's divisor."""
    sums: dict[tuple[str, bool], float] = field(default_factory=dict)
    """Sums of metrics by (name, whether an expert wrote the tokens), over tokens with a value."""
    counts: dict[tuple[str, bool], int] = field(default_factory=dict)
    """Number of tokens with a value, by the keys of `sums`."""
    computed: int = 0
    """Number of computed tokens; shared tokens count once."""
    segment_tokens: int = 0
    """Number of tokens of the segments; shared tokens count once per segment."""
    flops: int = 0
    """Number of floating-point operations, without recomputation."""
    oversized: int = 0
    """Number of forward passes with more tokens than the budget."""

    @torch.no_grad()
    def add(self, per_token: TokenLoss, outputs: TokenOutputs, micro: MicroBatch, divisor: int) -> None:
        """Add the sums of one forward pass.

        All numbers are transferred together, so the CPU waits for a device once.

        Args:
            per_token: Loss and metrics of each action token.
            outputs: Outputs of the forward pass.
            micro: Micro-batch of the forward pass.
            divisor: Number of tokens by which losses are divided.
        """
        losses, means = [("loss/total", per_token.loss)], [("policy/entropy", outputs.entropies)]
        for name, values in per_token.metrics.items():
            (losses if name.startswith("loss/") else means).append((name, values))
        kinds = [(name, by_expert) for name, _ in means for by_expert in (False, True)]
        numbers = [values.sum() for _, values in losses]
        for _, values in means:
            has_value = ~values.isnan()
            for mask in (has_value & ~micro.expert, has_value & micro.expert):
                numbers += [torch.where(mask, values, 0).sum(), mask.sum()]
        dtype = functools.reduce(torch.promote_types, (each.dtype for each in numbers))
        read = torch.stack([each.to(dtype) for each in numbers]).tolist()
        for (name, _), total in zip(losses, read, strict=False):
            self.losses[name] = self.losses.get(name, 0.0) + total / divisor
        rest = read[len(losses) :]
        for kind, total, count in zip(kinds, rest[::2], rest[1::2], strict=True):
            self.sums[kind] = self.sums.get(kind, 0.0) + total
            self.counts[kind] = self.counts.get(kind, 0) + int(count)
        self.computed += len(micro.ids)
        self.segment_tokens += micro.segment_tokens

    def merge_sums(self, other: MetricAccumulator) -> None:
        """Add the sums of other forward passes of the same update, such as those of another rank."""
        for name, loss in other.losses.items():
            self.losses[name] = self.losses.get(name, 0.0) + loss
        for kind, total in other.sums.items():
            self.sums[kind] = self.sums.get(kind, 0.0) + total
            self.counts[kind] = self.counts.get(kind, 0) + other.counts[kind]
        self.computed += other.computed
        self.segment_tokens += other.segment_tokens
        self.flops += other.flops
        self.oversized += other.oversized

    def metrics(self) -> dict[str, float]:
        """Return losses and means by metric name.

        A mean is over the policy's own tokens, or over an expert's if there are none.
        """
        means = {
            name: self.sums[name, by_expert] / count
            for (name, by_expert), count in self.counts.items()
            if count and (not by_expert or not self.counts[name, False])
        }
        return (
            dict(self.losses)
            | means
            | {
                "update/computed_tokens": float(self.computed),
                "update/shared_fraction": 1 - self.computed / self.segment_tokens,
                "update/oversized_micro_batches": float(self.oversized),
            }
        )
