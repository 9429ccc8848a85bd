"""OPRL: process rewards without labels, from the log-ratio of an implicit process reward model to the sampler.

Note: The reference is the sampling policy, which changes; compute the scores before either model is updated.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from whetstone.algorithms.axes import PerToken, PerTrajectory, PerTurn
from whetstone.algorithms.group_statistics import index_sets, normalize_in_sets
from whetstone.algorithms.returns import previous_values
from whetstone.bounded_types import NotNegative, Positive


def implicit_rewards(
    model_logprobs: PerToken, old_logprobs: PerToken, turn: PerToken, turns: int, *, beta: Positive = 0.05
) -> Tensor:
    """Compute the implicit process reward of each turn, [M], from a model's log-ratio to the sampling policy.

        r_t = β Σ over the turn's action tokens of (log π_φ − log π_old)

    Args:
        model_logprobs: [K] log-probs under the process reward model.
        old_logprobs: [K] log-probs under the policy that sampled the tokens.
        turn: [K] index of the turn of each token.
        turns: M; a turn without action tokens has 0.
        beta: Factor β of the log-ratio.

    Source: Liu et al. 2025 (iStar/OPRL), arXiv:2509.19199, eq. 5.
    """
    gaps = model_logprobs.double() - old_logprobs.double()
    return beta * gaps.new_zeros(turns).index_add_(0, turn, gaps)


def oprl(
    outcomes: PerTrajectory,
    implicit: PerTurn,
    trajectory: PerTurn,
    group: PerTrajectory,
    *,
    step_weight: NotNegative = 1.0,
    center: Literal["leave_one_out", "mean"] = "leave_one_out",
    scale: Literal["set", "none"] = "none",
    rescale: bool = True,
    baseline: Literal["all", "first"] = "all",
    epsilon: NotNegative = 1e-6,
) -> PerTurn:
    """Add outcome advantages and per-turn advantages of implicit rewards, both relative to the group (OPRL, iStar).

        A_it = A^E_i + α A^S_it,   both leave-one-out, or z

    Args:
        outcomes: [N] outcome per trajectory.
        implicit: [M] implicit rewards of the process model (`implicit_prm`).
        trajectory: [M] index of the trajectory of each turn.
        group: [N] index of the task of each trajectory.
        step_weight: Weight α of the per-turn advantages.
        center: Subtract the mean of the others, or of all.
        scale: `set` divides by the standard deviation of the group.
        rescale: Divide the implicit rewards by the largest of the batch first.
        baseline: `first` centers turns on the mean of the trajectories' first turns, a side effect in the code;
            unscaled, and 0 for a group of one.
        epsilon: Added to deviations and to the largest.

    Raises:
        ValueError: If `baseline` is `first` and `scale` is not `none`.

    Source: Liu et al. 2025, arXiv:2509.19199, and its code.
    """
    if baseline == "first" and scale != "none":
        raise ValueError("baseline: first is unscaled; use scale: none")
    rewards = implicit.double()
    if rescale and len(rewards):
        rewards = rewards / (rewards.abs().max() + epsilon)
    of_episode = normalize_in_sets(outcomes, group, center=center, scale=scale, epsilon=epsilon)[trajectory]
    task = group[trajectory]
    if baseline == "first":
        is_first = previous_values(torch.zeros_like(rewards), trajectory, torch.ones_like(rewards)) == 1
        of = index_sets(task)[0]
        count = torch.bincount(of[is_first])
        mean = rewards.new_zeros(len(count)).index_add_(0, of[is_first], rewards[is_first]) / count.clamp(min=1)
        others = count / (count - 1).clamp(min=1) if center == "leave_one_out" else torch.ones_like(count)
        centered = (rewards - mean[of]) * others[of]
        of_step = torch.where(count[of] == 1, 0.0, centered)  # no other trajectory
    else:
        of_step = normalize_in_sets(rewards, task, center=center, scale=scale, epsilon=epsilon)
    return of_episode + step_weight * of_step
