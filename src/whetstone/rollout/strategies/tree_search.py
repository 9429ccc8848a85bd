"""How is a way through a task searched, call by call? From the most promising turn on, as far as a budget goes.

    first turns → (choose a path that is open → continue it `width` times by a turn → value each) until the budget is
    used up → the best path that came to an end answers

Easy to get wrong: a path that is not finished has no reward. What leads the search is a verifier's opinion of it.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from whetstone.ranges import NotNegative
from whetstone.rewards import REWARDS, Reward, make_reward
from whetstone.rollout.protocol import Roller
from whetstone.rollout.strategies.choosing import chosen, valued
from whetstone.rollout.strategies.frontier_tree import as_tree
from whetstone.trajectory import EndReason, Group, Task, Trajectory


@dataclass(slots=True)
class _Node:
    """A path through the task, open or finished."""

    path: Trajectory
    value: float
    parent: _Node | None = None
    visits: int = 0
    total: float = 0.0
    children: list[_Node] = field(default_factory=list)
    expanded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSearch:
    """Best-first, A* or Monte-Carlo tree search over turns, led by a verifier.

    Sources: Koh et al. 2024, arXiv:2407.01476 (best-first over an agent's actions); Zhuang et al. 2023 (ToolChain*),
    arXiv:2310.13227 (A*); Zhou et al. 2023 (LATS), arXiv:2310.04406 (Monte-Carlo).
    """

    verifier: Any
    """A reward, named as in a recipe; it must be able to judge an episode that has only begun."""
    method: Literal["best_first", "a_star", "mcts"] = "best_first"
    """Which state is gone on from: the best; the best less `turn_cost` a turn; or by upper confidence bounds."""
    expansions: int = 8
    """Paths that are continued, each `width` times."""
    width: int = 3
    """Continuations of a path."""
    turn_cost: NotNegative = 0.1
    """Of A*: what a turn costs, in the verifier's unit; a path's promise is its value less its cost."""
    exploration: NotNegative = 1.4
    """Of Monte-Carlo search: how much a path that was seldom visited is preferred."""
    at_evaluation = True
    _reward: Reward = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("expansions", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is 1 or more, got {getattr(self, name)}")
        object.__setattr__(self, "_reward", make_reward(self.verifier, REWARDS))

    @property
    def provides(self) -> frozenset[str]:
        """What its groups carry."""
        return frozenset({"forks"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """See `Strategy`."""
        first = await asyncio.gather(*(roller.sample(task, index=i, max_turns=1) for i in range(self.width)))
        root = _Node(Trajectory("root", task.id, (), (), EndReason.MAX_TURNS), 0.0, expanded=True)
        await self._grown(root, list(first), task)
        taken = self.width
        for _ in range(self.expansions):
            node = self._next(root, roller)
            if node is None:
                break
            depth = len(node.path.turns)
            more = await asyncio.gather(
                *(
                    roller.fork(task, node.path, turns=depth, index=taken + k, max_turns=depth + 1)
                    for k in range(self.width)
                )
            )
            taken += self.width
            await self._grown(node, list(more), task)
        nodes = _below(root)
        if not any(not _open(node, roller) for node in nodes):  # nobody came to an end: the best goes on to its own
            best = max(nodes, key=lambda node: node.value)
            depth = len(best.path.turns)
            ended = await roller.fork(task, best.path, turns=depth, index=taken)
            await self._grown(best, [ended], task)
            nodes = _below(root)
        finished = [node for node in nodes if not _open(node, roller)]
        answers = max(range(len(finished)), key=lambda k: (finished[k].path.ended.valid, finished[k].value, -k))
        # paths that were only begun are in the costs, and no episodes
        return Group(task, as_tree(chosen([node.path for node in finished], answers)))

    async def _grown(self, node: _Node, paths: list[Trajectory], task: Task) -> None:
        node.expanded = True
        for path, value in zip(paths, await valued(self._reward, paths, task), strict=True):
            child = _Node(path, -math.inf if value is None else value, parent=node)
            node.children.append(child)
            up: _Node | None = child
            while up is not None:
                up.visits += 1
                up.total += 0.0 if math.isinf(child.value) else child.value
                up = up.parent

    def _next(self, root: _Node, roller: Roller) -> _Node | None:
        """The open path to continue; None where all are finished."""
        if self.method == "mcts":
            return self._by_visits(root, roller)
        candidates = [node for node in _below(root) if not node.expanded and _open(node, roller)]
        if not candidates:
            return None
        cost = self.turn_cost if self.method == "a_star" else 0.0
        return max(candidates, key=lambda node: node.value - cost * len(node.path.turns))

    def _by_visits(self, root: _Node, roller: Roller) -> _Node | None:
        """Down from the root, where the upper confidence bound is largest and something is open below."""
        node = root
        while node.expanded:
            alive = [child for child in node.children if _alive(child, roller)]
            if not alive:
                return None
            visits = math.log(max(1, node.visits))
            node = max(
                alive, key=lambda one: one.total / one.visits + self.exploration * math.sqrt(visits / one.visits)
            )
        return node


def _alive(node: _Node, roller: Roller) -> bool:
    return any(_alive(child, roller) for child in node.children) if node.expanded else _open(node, roller)


def _open(node: _Node, roller: Roller) -> bool:
    return node.path.ended is EndReason.MAX_TURNS and len(node.path.turns) < roller.max_turns


def _below(root: _Node) -> list[_Node]:
    found, left = [], list(root.children)
    while left:
        node = left.pop(0)
        found.append(node)
        left += node.children
    return found
