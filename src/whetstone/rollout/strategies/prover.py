"""How much nearer did a turn bring the goal? Provers go on from behind each turn, and how many of them get there says.

    independent episodes → behind each turn of each, `provers` continuations → how likely the best of them succeeds
    → the change of that by the turn is its reward

Easy to get wrong: a prover as strong as the policy itself adds nothing; the best of several of its tries is another
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from whetstone.ranges import NotNegative
from whetstone.rollout.protocol import Roller
from whetstone.trajectory import EndReason, Group, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Prover:
    """Independent episodes whose turns are paid by progress under a prover, the best of several tries of the policy.

    Continuations are in the costs of the group, and in nothing else.

    Source: Setlur et al. 2024 (rewarding progress), arXiv:2410.08146, §3.
    """

    group_size: int
    """Episodes of each task."""
    provers: int = 2
    """Continuations behind each turn."""
    best_of: int = 4
    """Tries the prover has."""
    alpha: NotNegative = 1.0
    """What progress counts for beside the outcome; the paper takes 3 to 5."""

    def __post_init__(self) -> None:
        if self.provers < 1 or self.best_of < 1:
            raise ValueError(f"provers and best_of are 1 or more, got {self.provers} and {self.best_of}")

    @property
    def provides(self) -> frozenset[str]:
        """What its groups carry."""
        return frozenset({"forks", "process_rewards"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """See `Strategy`."""
        size = roller.samples(self.group_size)
        paths = await asyncio.gather(*(roller.sample(task, index=i) for i in range(size)))
        valid = [path for path in paths if path.score is not None]
        if not valid:
            return Group(task, tuple(paths))
        start = likely(sum(path.solved for path in valid) / len(valid), self.best_of)
        taken, asked = size, []
        for number, path in enumerate(paths):
            if path.score is None:
                continue
            for turns in range(1, len(path.turns)):
                asked.append((number, turns, taken))
                taken += self.provers
        proved = await asyncio.gather(*(self._proved(task, roller, paths[n], turns, at) for n, turns, at in asked))
        reached: dict[tuple[int, int], float] = {
            (n, turns): value for (n, turns, _), value in zip(asked, proved, strict=True)
        }
        return Group(task, tuple(self._paid(path, number, start, reached) for number, path in enumerate(paths)))

    async def _proved(self, task: Task, roller: Roller, path: Trajectory, turns: int, index: int) -> float:
        tried = await asyncio.gather(
            *(roller.fork(task, path, turns=turns, index=index + k) for k in range(self.provers))
        )
        counted = [one.solved for one in tried if one.score is not None]
        return likely(sum(counted) / len(counted), self.best_of) if counted else 0.0

    def _paid(self, path: Trajectory, number: int, start: float, reached: dict[tuple[int, int], float]) -> Trajectory:
        if path.score is None or path.ended is EndReason.ERROR:
            return path
        values = [start, *(reached[number, turns] for turns in range(1, len(path.turns))), float(path.solved)]
        turns = tuple(self.alpha * gain for gain in progress(values)) if path.turns else ()
        before = path.score.turns or (0.0,) * len(path.turns)
        paid = tuple(a + b for a, b in zip(before, turns, strict=True))
        return replace(path, score=replace(path.score, turns=paid))


def likely(share: float, tries: int) -> float:
    """The chance that the best of so many tries succeeds, each succeeding with this chance: 1 − (1 − p)^K."""
    return float(1 - (1 - share) ** tries)


def progress(values: Sequence[float]) -> list[float]:
    """[T] by how much each of T turns changed the chance, of [T + 1] chances.

    Source: Setlur et al. 2024, arXiv:2410.08146: A(s, a) = Q(s, a) − V(s).
    """
    return [after - before for before, after in pairwise(values)]
