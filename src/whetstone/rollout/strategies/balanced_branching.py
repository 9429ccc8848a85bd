"""How many episodes from the start, and how many that part on the way? A pilot says where the agent is unsure.

Easy to get wrong: several unsure turns in a row must not take all the budget to one path; each makes the next less
likely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Literal

from whetstone.ranges import Count, NotNegative, Share
from whetstone.rollout.protocol import Roller
from whetstone.rollout.strategies.branching import Measured, branched, entropy_of
from whetstone.trajectory import Group, Task


def root_count(size: int, more: float, *, sharpness: NotNegative = 0.5) -> int:
    """Episodes from the start, of `size`: int(N σ(β (H_root − mean H))) + 1, at most N.

    Source: AEPO 2025, arXiv:2510.14545, and its code.
    """
    return min(size, int(size / (1 + math.exp(-sharpness * more))) + 1)


def balanced_probability(more: float, in_a_row: int, *, base: float = 0.5, weight: float = 0.2) -> float:
    """The chance to part: clip(1 − p/f + w ΔH, 0, 1), f = 1 − 0.05 c after c turns in a row that were parted at.

    Source: AEPO 2025, arXiv:2510.14545, its code.
    """
    left = 1 - 0.05 * in_a_row
    return 0.0 if left <= 0 else min(1.0, max(0.0, 1 - base / left + weight * more))


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedBranching:
    """A pilot episode decides how many begin at the start; the others part on the way, less often in a row (AEPO).

    The pilot is the first trajectory of the group, where the published code throws it away.

    Source: AEPO 2025, arXiv:2510.14545, and its code.
    """

    group_size: int
    """Trajectories of each task."""
    sharpness: NotNegative = 3.0
    """β of the number of roots. The published 0.5 hardly moves it."""
    base: Share = 0.5
    """How likely a turn is not parted at that is as unsure as the first."""
    weight: NotNegative = 0.2
    """How much a difference of entropy takes from it."""
    beam: int = 2
    """Paths a turn may become."""
    statistic: Literal["mean", "sum"] = "mean"
    """Over the first tokens of a turn; the published code takes the sum."""
    tokens: Count = 20
    """Of a turn, whose entropy is looked at."""
    measured: Measured = "after_tool"
    """Turn whose entropy is compared: `after_tool`, the turn that follows a tool result, or `before_tool`, the turn
    with the tool call, as in the published code."""
    vocabulary: int = 1
    """Entropies are divided by its logarithm; 1: they are not."""

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
        scale = math.log(self.vocabulary) if self.vocabulary > 1 else 1.0
        entropy = partial(entropy_of, tokens=self.tokens, statistic=self.statistic, scale=scale)
        pilot = roller.begin(task, index=0)
        turns = (await pilot.trajectory()).turns
        more = entropy(turns[0]) - fmean(entropy(turn) for turn in turns) if turns else 0.0
        count = root_count(size, more, sharpness=self.sharpness)
        return await branched(
            task,
            roller,
            [pilot, *(roller.begin(task, index=i) for i in range(1, count))],
            size=size,
            probability=partial(balanced_probability, base=self.base, weight=self.weight),
            entropy=entropy,
            beam=self.beam,
            measured=self.measured,
        )
