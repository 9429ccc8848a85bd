"""Where is an agent unsure? Behind a tool's answer. Episodes part there, with a chance that grows with the entropy.

Easy to get wrong: the entropy to compare with is that of the trajectory's own first turn; kept across batches, as in
the published code, it is another's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

from whetstone.plugins import OptionError
from whetstone.ranges import Count, NotNegative, Share
from whetstone.rollout.protocol import Roller
from whetstone.rollout.strategies.branching import Measured, branched, entropy_of
from whetstone.trajectory import Group, Task


def fork_probability(more: float, *, base: float = 0.5, weight: float = 0.2) -> float:
    """The chance to part where the entropy is so much higher than at the beginning: clip(α + β ΔH, 0, 1).

    Source: ARPO 2025, arXiv:2507.19849
    """
    return min(1.0, max(0.0, base + weight * more))


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyBranching:
    """Some episodes from the start; more part from them behind tool calls, where the policy is unsure (ARPO).

    As many roots as trajectories is independent sampling.

    Source: ARPO 2025, arXiv:2507.19849, and its code.
    """

    group_size: int
    """Trajectories of each task."""
    roots: int = 0
    """Of them from the start; 0: half."""
    beam: int = 2
    """Paths a turn may become."""
    base: Share = 0.5
    """How likely a turn is parted at that is as unsure as the first."""
    weight: NotNegative = 0.2
    """How much a difference of entropy adds to it."""
    statistic: Literal["mean", "sum"] = "mean"
    """Over the first tokens of a turn; the published code takes the sum."""
    tokens: Count = 20
    """Of a turn, whose entropy is looked at."""
    measured: Measured = "after_tool"
    """Turn whose entropy is compared: `after_tool`, the turn that follows a tool result, or `before_tool`, the turn
    with the tool call, as in the published code."""
    vocabulary: int = 1
    """Entropies are divided by its logarithm; 1: they are not."""

    def __post_init__(self) -> None:
        if not 0 <= self.roots <= self.group_size:
            raise OptionError("roots", f"0 to group_size ({self.group_size}), got {self.roots}")
        if self.beam < 2:
            raise OptionError("beam", f"two or more, or nothing would part; got {self.beam}")

    @property
    def reads_entropies(self) -> bool:
        """See `ReadsEntropies`."""
        return True

    @property
    def provides(self) -> frozenset[str]:
        """What its groups carry."""
        return frozenset({"forks"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """See `Strategy`."""
        size = roller.samples(self.group_size)
        roots = min(size, self.roots or (size + 1) // 2)
        scale = math.log(self.vocabulary) if self.vocabulary > 1 else 1.0
        return await branched(
            task,
            roller,
            [roller.begin(task, index=i) for i in range(roots)],
            size=size,
            probability=lambda more, _: fork_probability(more, base=self.base, weight=self.weight),
            entropy=partial(entropy_of, tokens=self.tokens, statistic=self.statistic, scale=scale),
            beam=self.beam,
            measured=self.measured,
        )
