"""Process rewards by progress: the change of a prover's success rate over each turn.

    independent episodes → after each turn of each, `provers` continuations → success probability of the best-of-K
    → its change over the turn is the reward of the turn

Note:
    A prover as strong as the policy itself adds nothing; best-of-K of the policy is a stronger one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from whetstone.bounded_types import NotNegative
from whetstone.rollout.protocol import Roller
from whetstone.trajectory import EndReason, Group, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Prover:
    """Samples independent episodes with process rewards: the progress under a prover, the best-of-K of the policy.

    Continuations of the prover count only in the costs of the group.

    Source: Setlur et al. 2024 (rewarding progress), arXiv:2410.08146, §3.
    """

    group_size: int
    """Number of episodes per task."""
    provers: int = 2
    """Number of continuations after each turn."""
    best_of: int = 4
    """Number K of tries of the prover, of which the best counts."""
    alpha: NotNegative = 1.0
    """Weight of progress relative to the outcome; the paper takes 3 to 5."""

    def __post_init__(self) -> None:
        if self.provers < 1 or self.best_of < 1:
            raise ValueError(f"provers and best_of must be at least 1, got {self.provers} and {self.best_of}")

    @property
    def provides(self) -> frozenset[str]:
        """Return `forks` and `process_rewards`: the groups have forked continuations and rewards per turn."""
        return frozenset({"forks", "process_rewards"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """Sample the trajectories of one group; see `Strategy.__call__`."""
        size = roller.samples(self.group_size)
        paths = await asyncio.gather(*(roller.sample(task, index=i) for i in range(size)))
        valid = [path for path in paths if path.score is not None]
        if not valid:
            return Group(task, tuple(paths))
        start = best_of_k_probability(sum(path.solved for path in valid) / len(valid), self.best_of)
        next_index, positions = size, []
        for number, path in enumerate(paths):
            if path.score is None:
                continue
            for turns in range(1, len(path.turns)):
                positions.append((number, turns, next_index))
                next_index += self.provers
        proved = await asyncio.gather(*(self._proved(task, roller, paths[n], turns, at) for n, turns, at in positions))
        reached: dict[tuple[int, int], float] = {
            (n, turns): value for (n, turns, _), value in zip(positions, proved, strict=True)
        }
        return Group(task, tuple(self._paid(path, number, start, reached) for number, path in enumerate(paths)))

    async def _proved(self, task: Task, roller: Roller, path: Trajectory, turns: int, index: int) -> float:
        tried = await asyncio.gather(
            *(roller.fork(task, path, turns=turns, index=index + k) for k in range(self.provers))
        )
        counted = [one.solved for one in tried if one.score is not None]
        return best_of_k_probability(sum(counted) / len(counted), self.best_of) if counted else 0.0

    def _paid(self, path: Trajectory, number: int, start: float, reached: dict[tuple[int, int], float]) -> Trajectory:
        if path.score is None or path.ended is EndReason.ERROR:
            return path
        values = [start, *(reached[number, turns] for turns in range(1, len(path.turns))), float(path.solved)]
        turns = tuple(self.alpha * gain for gain in progress_rewards(values)) if path.turns else ()
        before = path.score.turns or (0.0,) * len(path.turns)
        paid = tuple(a + b for a, b in zip(before, turns, strict=True))
        return replace(path, score=replace(path.score, turns=paid))


def best_of_k_probability(share: float, tries: int) -> float:
    """Return the success probability of the best of K tries: 1 − (1 − p)^K, with p = `share` and K = `tries`."""
    return float(1 - (1 - share) ** tries)


def progress_rewards(values: Sequence[float]) -> list[float]:
    """Compute [T] process rewards: the change of the success probability over each of T turns.

    Args:
        values: [T + 1] success probabilities before the first and after each turn.

    Source: Setlur et al. 2024, arXiv:2410.08146: A(s, a) = Q(s, a) − V(s).
    """
    return [after - before for before, after in pairwise(values)]
