"""Candidates for every turn: a verifier selects the best one, and the worst one becomes the other half of a pair.

    n candidates for a turn → values of a verifier → the best continues, the worst is kept as its sibling → … → end

Note:
    A sibling is unfinished and has no reward. Its value is that of the finished episode less 1, so that the mean value
    through each selected turn is above that of its sibling.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from whetstone.rewards import REWARDS, Reward, make_reward
from whetstone.rollout.protocol import Roller
from whetstone.rollout.strategies.best_of_n import NOT_CHOSEN, verifier_scores
from whetstone.rollout.strategies.frontier_tree import link_as_tree
from whetstone.trajectory import EndReason, Group, Score, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class SiblingTurns:
    """Samples candidates for each turn and continues the one that a verifier values most, without backtracking.

    In training the group has the finished episode and, per turn, the candidate with the lowest value, if it is below
    that of the best. With `objective: step_dpo` these are pairs of turns, ordered by the verifier (step-wise DPO
    without gold outcomes). In an evaluation only the finished episode counts (test-time scaling with a judge per turn).

    Sources: Li et al. 2025 (SPORT), arXiv:2504.21561; Yang et al. 2025 (GTA1), arXiv:2507.05791, §3.2.
    """

    group_size: int
    """Number of candidates per turn."""
    verifier: Any
    """Reward whose value ranks the candidates, named as in a recipe; it must support unfinished episodes."""
    at_evaluation = True
    _reward: Reward = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.group_size < 1:
            raise ValueError(f"group_size must be at least 1, got {self.group_size}")
        object.__setattr__(self, "_reward", make_reward(self.verifier, REWARDS))

    @property
    def provides(self) -> frozenset[str]:
        """Return `forks`: the groups contain episodes that share turns."""
        return frozenset({"forks"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """Sample the trajectories of one group; see `Strategy.__call__`."""
        size = roller.samples(self.group_size)
        path: Trajectory | None = None
        siblings: list[Trajectory] = []
        taken = 0
        while path is None or (path.ended is EndReason.MAX_TURNS and len(path.turns) < roller.max_turns):
            depth = 0 if path is None else len(path.turns)
            candidates = await asyncio.gather(
                *(
                    roller.sample(task, index=taken + k, max_turns=1)
                    if path is None
                    else roller.fork(task, path, turns=depth, index=taken + k, max_turns=depth + 1)
                    for k in range(size)
                )
            )
            taken += size
            values = await verifier_scores(self._reward, candidates, task)
            known = {k: value for k, value in enumerate(values) if value is not None}
            best, worst = (choose(known, key=known.__getitem__, default=0) for choose in (max, min))
            path = candidates[best]
            if known and known[worst] < known[best]:
                siblings.append(candidates[worst])
        if path.score is None:
            return Group(task, (path,))
        value = path.score.value - 1
        rejected = (
            replace(each, score=Score(value, success=False), removal=None, marks=(*each.marks, NOT_CHOSEN))
            for each in siblings
        )
        return Group(task, link_as_tree([path, *rejected]))
