"""Softmax policies over trees, enumerated: every episode and every group of episodes with its probability."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tree:
    """All episodes of a softmax policy over a tree of fixed depth; one row of logits per node."""

    paths: Tensor
    """[L, depth] action at each turn."""
    nodes: Tensor
    """[L, depth] node from which each action is sampled."""
    logits: Tensor
    """[nodes, actions]"""
    rewards: Tensor
    """[L] outcome of each episode."""

    @property
    def logprobs(self) -> Tensor:
        """[L, depth] log-probability of each action; differentiable if `logits` is."""
        return self.logits.log_softmax(-1)[self.nodes, self.paths]

    @property
    def probabilities(self) -> Tensor:
        """[L] probability of each episode."""
        return self.logprobs.detach().sum(1).exp()

    @property
    def scores(self) -> Tensor:
        """[L, depth, P] gradient of each action's log-probability with respect to all logits."""
        count, depth = self.paths.shape
        score = torch.zeros(count, depth, *self.logits.shape, dtype=torch.float64)
        probabilities = self.logits.detach().softmax(-1)
        for leaf, turn in itertools.product(range(count), range(depth)):
            node, action = int(self.nodes[leaf, turn]), int(self.paths[leaf, turn])
            score[leaf, turn, node] = -probabilities[node]
            score[leaf, turn, node, action] += 1
        return score.flatten(2)

    @property
    def gradient(self) -> Tensor:
        """[P] gradient of the expected reward."""
        return torch.einsum("l,l,ltp->p", self.probabilities, self.rewards, self.scores)

    @property
    def values(self) -> Tensor:
        """[L, depth + 1] expected reward given the actions before each turn; the last column is the outcome."""
        probabilities = self.probabilities
        result = torch.zeros(len(self.paths), self.paths.shape[1] + 1, dtype=torch.float64)
        for turn in range(self.paths.shape[1] + 1):
            same = (self.paths[:, None, :turn] == self.paths[None, :, :turn]).all(-1).double()
            result[:, turn] = (same * probabilities * self.rewards).sum(1) / (same * probabilities).sum(1)
        return result


def make_tree(logits: Sequence[Sequence[float]], rewards: Sequence[float], depth: int = 2) -> Tree:
    """Build a complete tree; node k of a level has its children in the order of the actions."""
    table = torch.tensor(logits, dtype=torch.float64)
    actions = table.shape[1]
    paths = list(itertools.product(range(actions), repeat=depth))
    nodes = []
    for path in paths:
        index, offset, row = 0, 0, []
        for turn, action in enumerate(path):
            row.append(offset + index)
            offset += actions**turn
            index = index * actions + action
        nodes.append(row)
    return Tree(torch.tensor(paths), torch.tensor(nodes), table, torch.tensor(rewards, dtype=torch.float64))


TREE = make_tree([[0.4, -0.3], [0.9, 0.1], [-0.6, 0.5]], [1.0, 0.0, 0.3, 0.8])
"""Two turns of two actions with logits that are not symmetric."""


@dataclass(frozen=True, slots=True)
class Groups:
    """All groups of `size` episodes that a policy can sample for one task, in the layout of the estimators."""

    members: Tensor
    """[C, size] episode of each member."""
    probabilities: Tensor
    """[C]"""

    @property
    def flat(self) -> Tensor:
        """[C · size] episode of each trajectory."""
        return self.members.flatten()

    @property
    def group(self) -> Tensor:
        """[C · size] group of each trajectory."""
        count, size = self.members.shape
        return torch.arange(count).repeat_interleave(size)

    def mean_of(self, x: Tensor) -> Tensor:
        """Expectation of a quantity per group, [C, …]."""
        return torch.einsum("c,c...->...", self.probabilities, x)

    def variance_of(self, x: Tensor) -> float:
        """Sum of the variances of the components of a vector per group, [C, P]."""
        return float(self.mean_of((x - self.mean_of(x)).square()).sum())


def enumerate_groups(probabilities: Tensor, size: int) -> Groups:
    """List all ordered groups of independent episodes."""
    members = torch.tensor(list(itertools.product(range(len(probabilities)), repeat=size)))
    return Groups(members, probabilities[members].prod(1))


def group_gradients(tree: Tree, groups: Groups, advantages: Tensor) -> Tensor:
    """[C, P] mean over each group's trajectories of advantage times score.

    Args:
        tree: The policy.
        groups: All groups.
        advantages: [C · size] per trajectory, or [C · size, depth] per turn.
    """
    scores = tree.scores[groups.flat]
    weighted = advantages.reshape(len(scores), -1, 1) * scores if advantages.dim() > 1 else None
    per_trajectory = weighted.sum(1) if weighted is not None else advantages[:, None] * scores.sum(1)
    return per_trajectory.view(*groups.members.shape, -1).mean(1)


def gradient_of(loss: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Gradient of a scalar function of a tensor."""
    x = x.detach().clone().requires_grad_()
    (result,) = torch.autograd.grad(loss(x), x)
    return result


def numbers(values: Sequence[float] | Sequence[Sequence[float]]) -> Tensor:
    """Return values as a float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


def max_gap(left: Tensor, right: Tensor) -> float:
    """Largest absolute difference."""
    return float((left - right).abs().max())


def make_walk(logits: Sequence[Sequence[float]], rewards: Sequence[float]) -> Tree:
    """Build a walk of three turns to the left (0) or right (1), in which paths meet again.

    Args:
        logits: [6, 2] one row per state: turn 0; turn 1 at 0, 1; turn 2 at 0, 1, 2.
        rewards: [4] outcome by final position.
    """
    paths = torch.tensor(list(itertools.product(range(2), repeat=3)))
    position = torch.cat([torch.zeros(8, 1, dtype=torch.long), paths.cumsum(1)], 1)
    nodes = position[:, :3] + torch.tensor([0, 1, 3])
    outcome = torch.tensor(rewards, dtype=torch.float64)[position[:, 3]]
    return Tree(paths, nodes, torch.tensor(logits, dtype=torch.float64), outcome)


WALK = make_walk([[0.2, 0.0], [0.5, -0.1], [-0.3, 0.2], [0.0, 0.4], [0.3, 0.1], [-0.2, 0.6]], [0.0, 0.2, 0.3, 1.0])
"""Three turns with two actions; the outcome grows with the number of steps to the right."""
