"""Process rewards without labels: what a second model, taught to prefer successes, finds likelier than the sampler did.

Easy to get wrong: the reference is the policy that sampled, which moves; score before either model is updated.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from whetstone.algorithms.levels import PerToken, PerTrajectory, PerTurn
from whetstone.algorithms.returns import preceding
from whetstone.algorithms.sets import normalised, sets_of
from whetstone.ranges import NotNegative, Positive


def implicit_rewards(
    model_logprobs: PerToken, old_logprobs: PerToken, turn: PerToken, turns: int, *, beta: Positive = 0.05
) -> Tensor:
    """[M] what a model finds likelier in each turn than the policy that sampled it.

        r_t = β Σ over the turn's action tokens of (log π_φ − log π_old)

    Args:
        model_logprobs: [K] under the reward model.
        old_logprobs: [K] under the policy that sampled.
        turn: [K] which turn the token belongs to.
        turns: M; a turn without action tokens has 0.
        beta: β.

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
    """Outcome against the siblings, and each turn's implicit reward against all turns of the group (OPRL, iStar).

        A_it = A^E_i + α A^S_it,   both leave-one-out, or z

    Args:
        outcomes: [N] of each trajectory.
        implicit: [M] implicit rewards of the process model (`implicit_prm`).
        trajectory: [M] which trajectory the turn belongs to.
        group: [N] which task a trajectory belongs to.
        step_weight: α.
        center: With the mean of the others, or of all.
        scale: Divide by the sets' deviations.
        rescale: Divide the implicit rewards by the largest of the batch first.
        baseline: `first` centres turns on the mean of the trajectories' first turns, a side effect in the code;
            unscaled, and 0 for a group of one.
        epsilon: Added to deviations and to the largest.

    Raises:
        ValueError: `baseline: first` is to be scaled.

    Source: Liu et al. 2025, arXiv:2509.19199, and its code.
    """
    if baseline == "first" and scale != "none":
        raise ValueError("baseline: first is unscaled; use scale: none")
    rewards = implicit.double()
    if rescale and len(rewards):
        rewards = rewards / (rewards.abs().max() + epsilon)
    of_episode = normalised(outcomes, group, center=center, scale=scale, epsilon=epsilon)[trajectory]
    task = group[trajectory]
    if baseline == "first":
        begins = preceding(torch.zeros_like(rewards), trajectory, torch.ones_like(rewards)) == 1
        of = sets_of(task)[0]
        count = torch.bincount(of[begins])
        mean = rewards.new_zeros(len(count)).index_add_(0, of[begins], rewards[begins]) / count.clamp(min=1)
        others = count / (count - 1).clamp(min=1) if center == "leave_one_out" else torch.ones_like(count)
        apart = (rewards - mean[of]) * others[of]
        of_step = torch.where(count[of] == 1, 0.0, apart)  # nobody to compare with
    else:
        of_step = normalised(rewards, task, center=center, scale=scale, epsilon=epsilon)
    return of_episode + step_weight * of_step
