"""What did the passes of an update come to? Sums that add up whichever way an update was cut, and whoever computed it.

Easy to get wrong: a mean of means is not the mean. Sums and counts are kept apart until all passes are in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

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
        """One more pass."""
        self.losses["loss/total"] += per_token.loss.sum().item() / divisor
        self._mean("policy/entropy", outputs.entropies, micro.expert)
        for name, values in per_token.metrics.items():
            if name.startswith("loss/"):
                self.losses[name] = self.losses.get(name, 0.0) + values.sum().item() / divisor
            else:
                self._mean(name, values, micro.expert)
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

    def _mean(self, name: str, values: Tensor, expert: Tensor) -> None:
        """[A] numbers of a pass, NaN where a token says nothing; the policy's own and an expert's are kept apart."""
        says = ~values.isnan()
        for by_expert in (False, True):
            mine = values[says & (expert == by_expert)]
            kind = (name, by_expert)
            self.sums[kind] = self.sums.get(kind, 0.0) + mine.sum().item()
            self.counts[kind] = self.counts.get(kind, 0) + len(mine)
