"""What did the passes of an update come to? Sums that add up whichever way an update was cut, and whoever computed it.

Easy to get wrong: a mean of means is not the mean. Sums and counts are kept apart until all passes are in.
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
class Tally:
    """Sums over the passes of an update."""

    losses: dict[str, float] = field(default_factory=lambda: {"loss/total": 0.0})
    """By name, over the update's divisor."""
    sums: dict[tuple[str, bool], float] = field(default_factory=dict)
    """By (name, whether an expert wrote the tokens), over the tokens that say something."""
    counts: dict[tuple[str, bool], int] = field(default_factory=dict)
    """How many those are."""
    computed: int = 0
    """Tokens computed."""
    standing: int = 0
    """Tokens of the segments, each counted as often as it stands in one."""
    flops: int = 0
    over: int = 0
    """Passes of more tokens than there should be in one."""

    @torch.no_grad()
    def add(self, per_token: TokenLoss, outputs: TokenOutputs, micro: MicroBatch, divisor: int) -> None:
        """Add the sums of one forward pass. All numbers are read at once, so the CPU waits for a device once."""
        losses, means = [("loss/total", per_token.loss)], [("policy/entropy", outputs.entropies)]
        for name, values in per_token.metrics.items():
            (losses if name.startswith("loss/") else means).append((name, values))
        kinds = [(name, by_expert) for name, _ in means for by_expert in (False, True)]
        numbers = [values.sum() for _, values in losses]
        for _, values in means:
            says = ~values.isnan()
            for mine in (says & ~micro.expert, says & micro.expert):
                numbers += [torch.where(mine, values, 0).sum(), mine.sum()]
        dtype = functools.reduce(torch.promote_types, (each.dtype for each in numbers))
        read = torch.stack([each.to(dtype) for each in numbers]).tolist()
        for (name, _), total in zip(losses, read, strict=False):
            self.losses[name] = self.losses.get(name, 0.0) + total / divisor
        rest = read[len(losses) :]
        for kind, total, count in zip(kinds, rest[::2], rest[1::2], strict=True):
            self.sums[kind] = self.sums.get(kind, 0.0) + total
            self.counts[kind] = self.counts.get(kind, 0) + int(count)
        self.computed += len(micro.ids)
        self.standing += micro.segment_tokens

    def merge(self, other: Tally) -> None:
        """The passes of somebody else, of the same update."""
        for name, loss in other.losses.items():
            self.losses[name] = self.losses.get(name, 0.0) + loss
        for kind, total in other.sums.items():
            self.sums[kind] = self.sums.get(kind, 0.0) + total
            self.counts[kind] = self.counts.get(kind, 0) + other.counts[kind]
        self.computed += other.computed
        self.standing += other.standing
        self.flops += other.flops
        self.over += other.over

    def metrics(self) -> dict[str, float]:
        """By name: losses, and means over the policy's own tokens where there is one, else over an expert's."""
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
                "update/shared_fraction": 1 - self.computed / self.standing,
                "update/oversized_micro_batches": float(self.over),
            }
        )
