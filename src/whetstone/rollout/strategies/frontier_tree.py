"""Tree strategy that forks at every turn and is pruned to the group size.

    n first turns → each open path continued `width` times → pruned to the number of unfinished paths → …

Note:
    The pruning must not prefer a parent with many candidates: they are taken parent by parent, in rotation. Duplicates
    count once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from random import Random
from typing import Literal

from whetstone.bounded_types import Count
from whetstone.rollout.protocol import Roller
from whetstone.trajectory import EndReason, Group, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierTree:
    """Continues every open path `width` times, turn by turn, and prunes the tree to the group size.

    Sources: PORTool 2025, arXiv:2510.26020 (candidates, pruned to n); TreePS-RAG 2026, arXiv:2601.06922 (near-duplicate
    siblings are pruned: `duplicates: observations`).
    """

    group_size: int
    """Number of paths per task."""
    width: Count = 2
    """Number of candidates for the next turn of each open path."""
    duplicates: Literal["actions", "observations", "keep"] = "actions"
    """Rule for duplicate siblings: those with the same `actions` or the same `observations` are pruned first; `keep`:
    no siblings are duplicates."""

    @property
    def provides(self) -> frozenset[str]:
        """Return `forks`: the groups contain episodes that share turns."""
        return frozenset({"forks"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """Sample the trajectories of one group; see `Strategy.__call__`."""
        size = roller.samples(self.group_size)
        taken = size
        paths = await asyncio.gather(*(roller.sample(task, index=i, max_turns=1) for i in range(size)))
        finished = [path for path in paths if not _open(path, roller)]
        frontier = [path for path in paths if _open(path, roller)]
        while frontier:
            depth = len(frontier[0].turns)
            continuations = [
                [
                    roller.fork(task, path, turns=depth, index=taken + number * self.width + k, max_turns=depth + 1)
                    for k in range(self.width)
                ]
                for number, path in enumerate(frontier)
            ]
            taken += len(frontier) * self.width
            grown = await asyncio.gather(*chain.from_iterable(continuations))
            of_each = [grown[i * self.width : (i + 1) * self.width] for i in range(len(frontier))]
            remaining = select_candidates(
                of_each, size - len(finished), roller.random(taken), duplicates=self.duplicates
            )
            finished += [path for path in remaining if not _open(path, roller)]
            frontier = [path for path in remaining if _open(path, roller)]
        return Group(task, link_as_tree(finished))


def select_candidates(
    candidates: Sequence[Sequence[Trajectory]],
    count: int,
    draw: Random,
    *,
    duplicates: Literal["actions", "observations", "keep"] = "actions",
) -> list[Trajectory]:
    """Select `count` candidates, one per parent in rotation; parents are in random order.

    Duplicates are selected only if there are too few other candidates.

    Args:
        candidates: Candidates of each parent.
        count: Number of candidates to select.
        duplicates: Rule for duplicates, see `FrontierTree.duplicates`.
    """
    order = list(range(len(candidates)))
    draw.shuffle(order)
    unique_paths: list[list[Trajectory]] = []
    duplicate_paths: list[list[Trajectory]] = []
    for parent in order:
        seen: set[Hashable] = set()
        unique: list[Trajectory] = []
        repeated: list[Trajectory] = []
        for path in candidates[parent]:
            key = _key(path, duplicates)
            (repeated if key is not None and key in seen else unique).append(path)
            seen.add(key)
        unique_paths.append(unique)
        duplicate_paths.append(repeated)
    rounds = chain(chain.from_iterable(zip_longest(*unique_paths)), chain.from_iterable(zip_longest(*duplicate_paths)))
    return [path for path in rounds if path is not None][:count]


def link_as_tree(paths: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
    """Set the parent of each path to the preceding path with which it shares the most turns."""
    placed: list[Trajectory] = []
    for path in paths:
        shared = [(_shared(path, other), -k) for k, other in enumerate(placed)]
        most, other = max(shared, default=(0, 0))
        parent = placed[-other].id if most else None
        placed.append(replace(path, parent=parent, fork_turn=most if most else None))
    return tuple(placed)


def _shared(path: Trajectory, other: Trajectory) -> int:
    count = 0
    for turn, other_turn in zip(path.turns, other.turns, strict=False):
        if turn is not other_turn:
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
