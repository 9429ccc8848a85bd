"""Branching strategy that balances root episodes and forks by the entropy of a pilot episode (AEPO).

Note:
    Several uncertain turns in a row must not spend the whole budget on one path; each fork makes the next one less
    likely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Literal

from whetstone.bounded_types import Count, NotNegative, Share
from whetstone.rollout.protocol import Roller
from whetstone.rollout.strategies.branching import Measured, sample_branches, turn_entropy
from whetstone.trajectory import Group, Task


def root_count(size: int, more: float, *, sharpness: NotNegative = 0.5) -> int:
    """Return the number of root episodes, of `size`: int(N σ(β (H_root − mean H))) + 1, at most N.

    Source: AEPO 2025, arXiv:2510.14545, and its code.
    """
    return min(size, int(size / (1 + math.exp(-sharpness * more))) + 1)


def balanced_probability(more: float, in_a_row: int, *, base: float = 0.5, weight: float = 0.2) -> float:
    """Return the fork probability: clip(1 − p/f + w ΔH, 0, 1), f = 1 − 0.05 c after c forked turns in a row.

    Source: AEPO 2025, arXiv:2510.14545, its code.
    """
    left = 1 - 0.05 * in_a_row
    return 0.0 if left <= 0 else min(1.0, max(0.0, 1 - base / left + weight * more))


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedBranching:
    """A pilot episode sets the number of roots; the others fork on the way, less often in a row (AEPO).

    The pilot is the first trajectory of the group; the published code discards it.

    Source: AEPO 2025, arXiv:2510.14545, and its code.
    """

    group_size: int
    """Number of trajectories per task."""
    sharpness: NotNegative = 3.0
    """β of the number of roots. The published 0.5 has hardly any effect."""
    base: Share = 0.5
    """Probability that a turn with the entropy of the first turn is not forked."""
    weight: NotNegative = 0.2
    """Factor of the entropy difference in the fork probability."""
    beam: int = 2
    """Maximum number of paths from one turn."""
    statistic: Literal["mean", "sum"] = "mean"
    """Statistic over the first tokens of a turn; the published code takes the sum."""
    tokens: Count = 20
    """Number of first tokens of a turn whose entropy is measured."""
    measured: Measured = "after_tool"
    """Turn whose entropy is compared: `after_tool`, the turn that follows a tool result, or `before_tool`, the turn
    with the tool call, as in the published code."""
    vocabulary: int = 1
    """Vocabulary size; entropies are divided by its logarithm. 1: they are not."""

    @property
    def reads_entropies(self) -> bool:
        """See `ReadsEntropies`."""
        return True

    @property
    def provides(self) -> frozenset[str]:
        """Return the additional data of its groups."""
        return frozenset({"forks"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """See `Strategy`."""
        size = roller.samples(self.group_size)
        scale = math.log(self.vocabulary) if self.vocabulary > 1 else 1.0
        entropy = partial(turn_entropy, tokens=self.tokens, statistic=self.statistic, scale=scale)
        pilot = roller.begin(task, index=0)
        turns = (await pilot.trajectory()).turns
        more = entropy(turns[0]) - fmean(entropy(turn) for turn in turns) if turns else 0.0
        count = root_count(size, more, sharpness=self.sharpness)
        return await sample_branches(
            task,
            roller,
            [pilot, *(roller.begin(task, index=i) for i in range(1, count))],
            size=size,
            probability=partial(balanced_probability, base=self.base, weight=self.weight),
            entropy=entropy,
            beam=self.beam,
            measured=self.measured,
        )
