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
    """Compute the number of root episodes of `size`: int(N σ(β (H_root − mean H))) + 1, at most N.

    `more` is H_root − mean H, `sharpness` is β.

    Source: AEPO 2025, arXiv:2510.14545, and its code.
    """
    return min(size, int(size / (1 + math.exp(-sharpness * more))) + 1)


def balanced_probability(more: float, in_a_row: int, *, base: float = 0.5, weight: float = 0.2) -> float:
    """Compute the fork probability clip(1 − p/f + w ΔH, 0, 1), f = 1 − 0.05 c after c consecutive forked turns.

    `more` is ΔH, `in_a_row` is c, `base` is p, `weight` is w.

    Source: AEPO 2025, arXiv:2510.14545, its code.
    """
    left = 1 - 0.05 * in_a_row
    return 0.0 if left <= 0 else min(1.0, max(0.0, 1 - base / left + weight * more))


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedBranching:
    """Samples root episodes and forks; a pilot episode sets their ratio, and consecutive forks become rarer (AEPO).

    The pilot is the first trajectory of the group; the published code discards it.

    Source: AEPO 2025, arXiv:2510.14545, and its code.
    """

    group_size: int
    """Number of trajectories per task."""
    sharpness: NotNegative = 3.0
    """Factor β in the number of roots; the published 0.5 has hardly any effect."""
    base: Share = 0.5
    """Probability that a turn with the entropy of the first turn is not forked."""
    weight: NotNegative = 0.2
    """Factor of the entropy difference in the fork probability."""
    beam: int = 2
    """Maximum number of paths that continue from one turn."""
    statistic: Literal["mean", "sum"] = "mean"
    """Statistic over the first tokens of a turn; the published code takes the sum."""
    tokens: Count = 20
    """Number of first tokens of a turn whose entropy is measured."""
    measured: Measured = "after_tool"
    """Turn whose entropy is compared: `after_tool`, the turn that follows a tool result, or `before_tool`, the turn
    with the tool call, as in the published code."""
    vocabulary: int = 1
    """Vocabulary size, by whose logarithm entropies are divided; 1: no division."""

    @property
    def reads_entropies(self) -> bool:
        """Return True: fork decisions require the sampler's entropies; see `ReadsEntropies`."""
        return True

    @property
    def provides(self) -> frozenset[str]:
        """Return `forks`: the groups contain episodes that share turns."""
        return frozenset({"forks"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """Sample the trajectories of one group; see `Strategy.__call__`."""
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
