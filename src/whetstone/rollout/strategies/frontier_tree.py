"""A tree that parts at every turn, and is cut back to as many paths as the group may have.

    n first turns → each open path f turns further → of those as many as are not finished yet → …

Easy to get wrong: which candidates stay must not favour a parent with many: they are taken parent by parent, in turn;
and two that say the same are one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from random import Random
from typing import Literal

from whetstone.ranges import Count
from whetstone.rollout.protocol import Roller
from whetstone.trajectory import EndReason, Group, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierTree:
    """Every open path is continued `width` times, turn by turn; so many stay as the group has room for.

    Sources: PORTool 2025, arXiv:2510.26020 (candidates, cut back to n); TreePS-RAG 2026, arXiv:2601.06922
    (near-duplicate siblings are pruned: `duplicates: observations`).
    """

    group_size: int
    """Paths of each task."""
    width: Count = 2
    """Candidates for the next turn of each open path."""
    duplicates: Literal["actions", "observations", "keep"] = "actions"
    """Siblings of which one is dropped: those that did the same, or were answered the same."""

    @property
    def provides(self) -> frozenset[str]:
        """What its groups carry."""
        return frozenset({"forks"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """See `Strategy`."""
        size = roller.samples(self.group_size)
        taken = size
        paths = await asyncio.gather(*(roller.sample(task, index=i, max_turns=1) for i in range(size)))
        finished = [path for path in paths if not _open(path, roller)]
        frontier = [path for path in paths if _open(path, roller)]
        while frontier:
            depth = len(frontier[0].turns)
            asked = [
                [
                    roller.fork(task, path, turns=depth, index=taken + number * self.width + k, max_turns=depth + 1)
                    for k in range(self.width)
                ]
                for number, path in enumerate(frontier)
            ]
            taken += len(frontier) * self.width
            grown = await asyncio.gather(*chain.from_iterable(asked))
            of_each = [grown[i * self.width : (i + 1) * self.width] for i in range(len(frontier))]
            kept = keep(of_each, size - len(finished), roller.random(taken), duplicates=self.duplicates)
            finished += [path for path in kept if not _open(path, roller)]
            frontier = [path for path in kept if _open(path, roller)]
        return Group(task, as_tree(finished))


def keep(
    candidates: Sequence[Sequence[Trajectory]],
    count: int,
    draw: Random,
    *,
    duplicates: Literal["actions", "observations", "keep"] = "actions",
) -> list[Trajectory]:
    """`count` of the candidates of each parent: one of each at a time, parents in an order of chance.

    Where siblings that are alike are too few without their likes, these are taken after all.
    """
    order = list(range(len(candidates)))
    draw.shuffle(order)
    unlike: list[list[Trajectory]] = []
    alike: list[list[Trajectory]] = []
    for parent in order:
        seen: set[Hashable] = set()
        mine: list[Trajectory] = []
        again: list[Trajectory] = []
        for path in candidates[parent]:
            key = _key(path, duplicates)
            (again if key is not None and key in seen else mine).append(path)
            seen.add(key)
        unlike.append(mine)
        alike.append(again)
    rounds = chain(chain.from_iterable(zip_longest(*unlike)), chain.from_iterable(zip_longest(*alike)))
    return [path for path in rounds if path is not None][:count]


def as_tree(paths: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
    """The paths, each said to have parted from the one before it that it shares most turns with."""
    placed: list[Trajectory] = []
    for path in paths:
        shared = [(_shared(path, other), -k) for k, other in enumerate(placed)]
        most, other = max(shared, default=(0, 0))
        parent = placed[-other].id if most else None
        placed.append(replace(path, parent=parent, fork_turn=most if most else None))
    return tuple(placed)


def _shared(path: Trajectory, other: Trajectory) -> int:
    count = 0
    for mine, theirs in zip(path.turns, other.turns, strict=False):
        if mine is not theirs:
            break
        count += 1
    return count


def _open(path: Trajectory, roller: Roller) -> bool:
    return path.ended is EndReason.MAX_TURNS and len(path.turns) < roller.max_turns


def _key(path: Trajectory, by: str) -> Hashable:
    if by == "keep" or not path.turns:
        return None
    last = path.turns[-1]
    return last.action.ids if by == "actions" else tuple(message.key for message in last.observation) or last.action.ids
