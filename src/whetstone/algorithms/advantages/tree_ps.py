"""TreePS: the value of a turn in a tree is the mean outcome of all episodes through it.

Note: Forked trajectories hold the same turns, so a node is a turn's identity, and a chain without forks
has no signal after its first turn: each node's value is its parent's.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from whetstone.algorithms.axes import PerTrajectory, PerTurn
from whetstone.algorithms.group_statistics import combine_keys, set_mean
from whetstone.algorithms.returns import previous_values


def node_values(
    rewards: PerTrajectory, trajectory: PerTurn, nodes: PerTurn, group: PerTrajectory
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values of each turn's node, of its parent and of the root; each [M], float64.

        V(n) = mean outcome of the trajectories through n;   V(root) over all of the task

    Source: arXiv:2601.06922 (Monte-Carlo values of a tree).
    """
    task = group[trajectory]
    value = set_mean(rewards[trajectory], combine_keys(task, nodes))
    root = set_mean(rewards, group)[trajectory]
    return value, previous_values(value, trajectory, root), root


def tree_ps(
    rewards: PerTrajectory,
    group: PerTrajectory,
    trajectory: PerTurn,
    nodes: PerTurn,
    *,
    form: Literal["root", "parent", "root_parent", "root_parent_scaled"] = "root_parent",
) -> PerTurn:
    """Compute the increase of the mean outcome by each turn (TreePS-RAG).

        parent:       V(n) − V(parent of n)
        root_parent:  (V(n) − V(root)) + (V(n) − V(parent of n));   scaled: / √(leaves of n)
        root:         V(n) − V(root), on chains the mean baseline of Dr. GRPO

    On chains `parent` is 0 below the first turn. A shared turn has one advantage, in all its branches.

    Use it with a strategy that forks (`rollout.strategy: random_branching`); it needs only outcomes.

    Args:
        rewards: [N] total reward per trajectory.
        group: [N] index of the task of each trajectory.
        trajectory: [M] index of the trajectory of each turn.
        nodes: [M] the turn's identity: equal exactly where trajectories share the turn.
        form: Values that are compared.

    Source: arXiv:2601.06922 for the values; the sum of both comparisons is that of TreeRL, arXiv:2506.11902.
    """
    value, parent, root = node_values(rewards, trajectory, nodes, group)
    if form == "root":
        return _exact(value - root)
    if form == "parent":
        return _exact(value - parent)
    both = (value - root) + (value - parent)
    if form == "root_parent_scaled":
        key = combine_keys(group[trajectory], nodes)
        both = both / torch.bincount(key)[key].double().sqrt()
    return _exact(both)


def _exact(difference: Tensor) -> Tensor:
    """Round off the last bits: means of equal outcomes can differ by an ulp, which is not a difference."""
    return torch.where(difference.abs() < 1e-12, 0.0, difference)
