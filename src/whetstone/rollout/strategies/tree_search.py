"""Tree search over turns for evaluations: best-first, A*, Monte-Carlo or depth-first, with a verifier and a budget.

    first turns → (select an open path → continue it `width` times by a turn → value each) until the budget is
    used up → the best finished path is the answer

Note:
    An unfinished path has no reward. The search is guided by a verifier's value of it.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from whetstone.bounded_types import NotNegative
from whetstone.rewards import REWARDS, Reward, make_reward
from whetstone.rollout.protocol import Roller
from whetstone.rollout.strategies.best_of_n import mark_selected, verifier_scores
from whetstone.rollout.strategies.frontier_tree import link_as_tree
from whetstone.trajectory import EndReason, Group, Task, Trajectory


@dataclass(slots=True)
class _Node:
    """Node of the search tree: a path of turns, open or finished, with its value."""

    path: Trajectory
    value: float
    parent: _Node | None = None
    visits: int = 0
    total: float = 0.0
    children: list[_Node] = field(default_factory=list)
    expanded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSearch:
    """Searches over turns: best-first, A*, Monte-Carlo or depth-first, valued by a verifier; for evaluations.

    Sources: Koh et al. 2024, arXiv:2407.01476 (best-first over an agent's actions); Zhuang et al. 2023 (ToolChain*),
    arXiv:2310.13227 (A*); Zhou et al. 2023 (LATS), arXiv:2310.04406 (Monte-Carlo).
    """

    verifier: Any
    """Reward that values a path, named as in a recipe; it must support unfinished episodes."""
    method: Literal["best_first", "a_star", "mcts", "depth_first"] = "best_first"
    """Selection of the path to continue: `best_first`, the highest value; `a_star`, the highest value less `turn_cost`
    per turn; `mcts`, by upper confidence bounds; `depth_first`, the longest path, without the verifier."""
    expansions: int = 8
    """Maximum number of paths that are continued, each `width` times."""
    min_value: float | None = None
    """Value of a finished path that ends the search; None: the search uses all expansions."""
    width: int = 3
    """Number of continuations of a path."""
    turn_cost: NotNegative = 0.1
    """Cost of a turn in A*, in the verifier's unit; it is subtracted from the value of a path."""
    exploration: NotNegative = 1.4
    """Exploration constant of Monte-Carlo tree search; a higher one prefers paths with few visits."""
    at_evaluation = True
    _reward: Reward = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("expansions", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        object.__setattr__(self, "_reward", make_reward(self.verifier, REWARDS))

    @property
    def provides(self) -> frozenset[str]:
        """Return `forks`: the groups contain episodes that share turns."""
        return frozenset({"forks"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """Sample the trajectories of one group; see `Strategy.__call__`."""
        first = await asyncio.gather(*(roller.sample(task, index=i, max_turns=1) for i in range(self.width)))
        root = _Node(Trajectory("root", task.id, (), (), EndReason.MAX_TURNS), 0.0, expanded=True)
        await self._grown(root, list(first), task)
        taken = self.width
        for _ in range(self.expansions):
            node = None if self._is_solved(root, roller) else self._next(root, roller)
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
        if not any(not _open(node, roller) for node in nodes):  # no path has ended: continue the best one to its end
            best = max(nodes, key=lambda node: node.value)
            depth = len(best.path.turns)
            ended = await roller.fork(task, best.path, turns=depth, index=taken)
            await self._grown(best, [ended], task)
            nodes = _below(root)
        finished = [node for node in nodes if not _open(node, roller)]
        answers = max(range(len(finished)), key=lambda k: (finished[k].path.ended.valid, finished[k].value, -k))
        # unfinished paths count only in the costs
        return Group(task, link_as_tree(mark_selected([node.path for node in finished], answers)))

    async def _grown(self, node: _Node, paths: list[Trajectory], task: Task) -> None:
        node.expanded = True
        for path, value in zip(paths, await verifier_scores(self._reward, paths, task), strict=True):
            child = _Node(path, -math.inf if value is None else value, parent=node)
            node.children.append(child)
            up: _Node | None = child
            while up is not None:
                up.visits += 1
                up.total += 0.0 if math.isinf(child.value) else child.value
                up = up.parent

    def _next(self, root: _Node, roller: Roller) -> _Node | None:
        """Return the open path to continue; None if all paths are finished."""
        if self.method == "mcts":
            return self._by_visits(root, roller)
        candidates = [node for node in _below(root) if not node.expanded and _open(node, roller)]
        if not candidates:
            return None
        if self.method == "depth_first":
            return max(candidates, key=lambda node: len(node.path.turns))  # the first of equal ones
        cost = self.turn_cost if self.method == "a_star" else 0.0
        return max(candidates, key=lambda node: node.value - cost * len(node.path.turns))

    def _is_solved(self, root: _Node, roller: Roller) -> bool:
        """Return whether a finished path has the value that ends the search."""
        finished = (node for node in _below(root) if not _open(node, roller))
        return self.min_value is not None and any(node.value >= self.min_value for node in finished)

    def _by_visits(self, root: _Node, roller: Roller) -> _Node | None:
        """Return the open path that the largest upper confidence bounds lead to, from the root down."""
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
    nodes, remaining = [], list(root.children)
    while remaining:
        node = remaining.pop(0)
        nodes.append(node)
        remaining += node.children
    return nodes
