"""PORTool: siblings of a tree are compared at their fork, and leaves with all leaves.

Note: A shared turn has one reward, whatever branch it is read in.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.axes import PerTrajectory, PerTurn
from whetstone.algorithms.group_statistics import combine_keys, index_sets, normalize_in_sets, set_mean
from whetstone.algorithms.returns import is_last_step, previous_values
from whetstone.bounded_types import NotNegative, Share


def portool(
    outcomes: PerTrajectory,
    process_rewards: PerTurn,
    trajectory: PerTurn,
    group: PerTrajectory,
    turn_index: PerTurn,
    nodes: PerTurn,
    *,
    discount: Share = 0.95,
    trajectory_weight: NotNegative = 1.0,
    fork_weight: NotNegative = 1.0,
    epsilon: NotNegative = 1e-6,
) -> PerTurn:
    """Compute advantages of turns among siblings of the tree and of their trajectories in the group (PORTool).

        R(n) = mean over trajectories i through n of (γ^(T_i − t) outcome_i + format_n)
        A(n) = w₁ · mean over i of z(outcome)_i + w₂ · z over the siblings of R(n)

    An only child has no second term. First turns of all trees of a task are siblings.

    Use it with a strategy that forks, outcomes of +1, −1 and 0 (cannot answer), and format rewards far below
    γ^T / 2, so that correctness always decides.

    Args:
        outcomes: [N] outcome per trajectory.
        process_rewards: [M] format rewards.
        trajectory: [M] index of the trajectory of each turn.
        group: [N] index of the task of each trajectory.
        turn_index: [M] position of each turn in its trajectory.
        nodes: [M] identity of each turn; shared turns of forks have the same value.
        discount: γ per turn.
        trajectory_weight: w₁.
        fork_weight: w₂.
        epsilon: Added to deviations.

    Source: arXiv:2510.26020 for tree, outcome and reward; mean over shared turns, γ and weights are not stated there.
    """
    task = group[trajectory]
    node = combine_keys(task, nodes)
    ends = is_last_step(trajectory)
    last_index = turn_index.new_zeros(len(outcomes)).index_copy_(0, trajectory[ends], turn_index[ends])
    turns_left = (last_index[trajectory] - turn_index).double()
    reward = set_mean(outcomes.double()[trajectory] * discount**turns_left + process_rewards.double(), node)
    parent = previous_values(node, trajectory, -1 - index_sets(task)[0])  # the root of each task is no node
    of_fork = _among_siblings(reward, node, parent, epsilon)
    of_trajectory = set_mean(normalize_in_sets(outcomes, group, epsilon=epsilon)[trajectory], node)
    return trajectory_weight * of_trajectory + fork_weight * of_fork


def _among_siblings(reward: Tensor, node: Tensor, parent: Tensor, epsilon: float) -> Tensor:
    """Normalize each node's reward among its siblings; a node counts once, however many trajectories go through it."""
    node, count = torch.unique(node, return_inverse=True, return_counts=True)[1:]
    first = torch.zeros_like(count).scatter_reduce_(
        0, node, torch.arange(len(node), device=node.device), "amin", include_self=False
    )
    return normalize_in_sets(reward[first], parent[first], epsilon=epsilon)[node]
