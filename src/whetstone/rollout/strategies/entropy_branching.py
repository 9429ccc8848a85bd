"""Branching strategy that forks episodes after tool results, with a probability that grows with the entropy (ARPO).

Note:
    The reference entropy is that of the trajectory's own first turn. The published code keeps one across batches, which
    is that of another trajectory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

from whetstone.bounded_types import Count, NotNegative, Share
from whetstone.plugins import OptionError
from whetstone.rollout.protocol import Roller
from whetstone.rollout.strategies.branching import Measured, sample_branches, turn_entropy
from whetstone.trajectory import Group, Task


def fork_probability(more: float, *, base: float = 0.5, weight: float = 0.2) -> float:
    """Return the fork probability of a turn whose entropy exceeds the reference by ΔH: clip(α + β ΔH, 0, 1).

    `more` is ΔH, `base` is α, `weight` is β.

    Source: ARPO 2025, arXiv:2507.19849
    """
    return min(1.0, max(0.0, base + weight * more))


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyBranching:
    """Samples root episodes, and forks further ones from them after tool calls with a high entropy (ARPO).

    With as many roots as trajectories it is independent sampling.

    Source: ARPO 2025, arXiv:2507.19849, and its code.
    """

    group_size: int
    """Number of trajectories per task."""
    roots: int = 0
    """Number of root episodes; 0: half of the group."""
    beam: int = 2
    """Maximum number of paths that continue from one turn."""
    base: Share = 0.5
    """Fork probability of a turn with the entropy of the first turn."""
    weight: NotNegative = 0.2
    """Factor of the entropy difference in the fork probability."""
    statistic: Literal["mean", "sum"] = "mean"
    """Statistic over the first tokens of a turn; the published code takes the sum."""
    tokens: Count = 20
    """Number of first tokens of a turn whose entropy is measured."""
    measured: Measured = "after_tool"
    """Turn whose entropy is compared: `after_tool`, the turn that follows a tool result, or `before_tool`, the turn
    with the tool call, as in the published code."""
    vocabulary: int = 1
    """Vocabulary size, by whose logarithm entropies are divided; 1: no division."""

    def __post_init__(self) -> None:
        if not 0 <= self.roots <= self.group_size:
            raise OptionError("roots", f"must be from 0 to group_size ({self.group_size}), got {self.roots}")
        if self.beam < 2:
            raise OptionError("beam", f"must be at least 2 (with 1 there are no forks), got {self.beam}")

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
        roots = min(size, self.roots or (size + 1) // 2)
        scale = math.log(self.vocabulary) if self.vocabulary > 1 else 1.0
        return await sample_branches(
            task,
            roller,
            [roller.begin(task, index=i) for i in range(roots)],
            size=size,
            probability=lambda more, _: fork_probability(more, base=self.base, weight=self.weight),
            entropy=partial(turn_entropy, tokens=self.tokens, statistic=self.statistic, scale=scale),
            beam=self.beam,
            measured=self.measured,
        )
