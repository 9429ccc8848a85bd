"""Which way was better at the fork? Siblings in the tree are compared where they part, and leaves with all leaves.

Easy to get wrong: a shared turn has one reward, whatever branch it is read in.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.levels import PerTrajectory, PerTurn
from whetstone.algorithms.returns import last_of, preceding
from whetstone.algorithms.sets import joint_keys, normalised, set_mean, sets_of
from whetstone.ranges import NotNegative, Share


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
    """A turn among its siblings in the tree, and its trajectories among all of the task (PORTool).

        R(n) = mean over trajectories i through n of (γ^(T_i − t) outcome_i + format_n)
        A(n) = w₁ · mean over i of z(outcome)_i + w₂ · z over the siblings of R(n)

    An only child has no second term. First turns of all trees of a task are siblings.

    Use it with a strategy that forks, outcomes of +1, −1 and 0 (cannot answer), and format rewards small beside
    γ^T / 2, so that correctness always decides.

    Args:
        outcomes: [N] of each trajectory.
        process_rewards: [M] format rewards.
        trajectory: [M] which trajectory the turn belongs to.
        group: [N] which task a trajectory belongs to.
        turn_index: [M] its number in the trajectory.
        nodes: [M] the turn's identity.
        discount: γ, a turn.
        trajectory_weight: w₁.
        fork_weight: w₂.
        epsilon: Added to deviations.

    Source: arXiv:2510.26020 for tree, outcome and reward; mean over shared turns, γ and weights are ours.
    """
    task = group[trajectory]
    node = joint_keys(task, nodes)
    ends = last_of(trajectory)
    last_index = turn_index.new_zeros(len(outcomes)).index_copy_(0, trajectory[ends], turn_index[ends])
    turns_left = (last_index[trajectory] - turn_index).double()
    reward = set_mean(outcomes.double()[trajectory] * discount**turns_left + process_rewards.double(), node)
    parent = preceding(node, trajectory, -1 - sets_of(task)[0])  # the root of each task is no node
    of_fork = _among_siblings(reward, node, parent, epsilon)
    of_trajectory = set_mean(normalised(outcomes, group, epsilon=epsilon)[trajectory], node)
    return trajectory_weight * of_trajectory + fork_weight * of_fork


def _among_siblings(reward: Tensor, node: Tensor, parent: Tensor, epsilon: float) -> Tensor:
    """Each node's reward against its siblings', each node counted once however many trajectories go through it."""
    node, count = torch.unique(node, return_inverse=True, return_counts=True)[1:]
    first = torch.zeros_like(count).scatter_reduce_(
        0, node, torch.arange(len(node), device=node.device), "amin", include_self=False
    )
    return normalised(reward[first], parent[first], epsilon=epsilon)[node]
