"""What is a turn worth in a tree? The mean outcome of all episodes that go through it.

Easy to get wrong: forked trajectories hold the same turns, so a node is a turn's identity, and a chain without forks
has nothing to say below its first turn: each node's value is its parent's.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from whetstone.algorithms.levels import PerTrajectory, PerTurn
from whetstone.algorithms.returns import preceding
from whetstone.algorithms.sets import joint_keys, set_mean


def node_values(
    rewards: PerTrajectory, trajectory: PerTurn, nodes: PerTurn, group: PerTrajectory
) -> tuple[Tensor, Tensor, Tensor]:
    """Values of each turn's node, of the node in front of it, and of the root; each [M], float64.

        V(n) = mean outcome of the trajectories through n;   V(root) over all of the task

    Source: arXiv:2601.06922 (Monte-Carlo values of a tree).
    """
    task = group[trajectory]
    value = set_mean(rewards[trajectory], joint_keys(task, nodes))
    root = set_mean(rewards, group)[trajectory]
    return value, preceding(value, trajectory, root), root


def tree_ps(
    rewards: PerTrajectory,
    group: PerTrajectory,
    trajectory: PerTurn,
    nodes: PerTurn,
    *,
    form: Literal["root", "parent", "root_parent", "root_parent_scaled"] = "root_parent",
) -> PerTurn:
    """How much a turn raised the mean outcome of what came of it (TreePS-RAG).

        parent:       V(n) − V(parent of n)
        root_parent:  (V(n) − V(root)) + (V(n) − V(parent of n));   scaled: / √(leaves of n)
        root:         V(n) − V(root), on chains the mean baseline of Dr. GRPO

    On chains `parent` is 0 below the first turn. A shared turn has one advantage, in all its branches.

    Use it with a strategy that forks (`rollout.strategy: random_branching`); it needs only outcomes.

    Args:
        rewards: [N] all a trajectory earned.
        group: [N] which task a trajectory belongs to.
        trajectory: [M] which trajectory the turn belongs to.
        nodes: [M] the turn's identity: equal exactly where trajectories share the turn.
        form: What is compared.

    Source: arXiv:2601.06922 for the values; the sum of both comparisons is that of TreeRL, arXiv:2506.11902.
    """
    value, parent, root = node_values(rewards, trajectory, nodes, group)
    if form == "root":
        return _exact(value - root)
    if form == "parent":
        return _exact(value - parent)
    both = (value - root) + (value - parent)
    if form == "root_parent_scaled":
        key = joint_keys(group[trajectory], nodes)
        both = both / torch.bincount(key)[key].double().sqrt()
    return _exact(both)


def _exact(difference: Tensor) -> Tensor:
    """Means of equal outcomes can be an ulp apart; that is no difference."""
    return torch.where(difference.abs() < 1e-12, 0.0, difference)
