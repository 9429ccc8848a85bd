"""Advantages of online learning: standardized rewards of turns, and DPO weights of preference pairs.

Note:
    The weight of a pair depends on the weights before the update. Online learning makes one update per batch, so that
    it equals the gradient of DPO exactly.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import PerToken, PerTrajectory
from whetstone.bounded_types import Positive


def standardize_rewards(rewards: PerTrajectory) -> PerTrajectory:
    """Compute the standardized rewards of the turns of an update.

    An answer that a person accepted is informative only in comparison with replaced ones. A replaced answer has reward
    −1; any other, including the person's message, has 0.

        A_i = (r_i − mean(r)) / (std(r) + 1e-6)      over the turns of an update, including replayed ones

    `std` is the standard deviation of the population. If all rewards are equal, A is 0.

    Args:
        rewards: [N]

    Source: the reward of Luo et al. 2023 (RLIF), arXiv:2311.12996, which learns values from it; here the mean of an
    update replaces the values.
    """
    deviations = rewards.double() - rewards.double().mean()
    return deviations / (deviations.square().mean().sqrt() + 1e-6)


def dpo_weights(
    rewards: PerTrajectory,
    group: PerTrajectory,
    old_logprobs: PerToken,
    reference_logprobs: PerToken,
    token_trajectory: PerToken,
    *,
    beta: Positive = 0.1,
) -> PerTrajectory:
    """Compute the DPO gradient weight of a pair of turns over β, or the reward of a single turn.

        Δ = (Σℓ_w − Σref_w) − (Σℓ_l − Σref_l);   A_w = w σ(−β Δ),   A_l = −A_w,   w half of their rewards' difference

    At Δ = 0 the weight is ±½; it decreases with the margin.

    Args:
        rewards: [N]
        group: [N] index of the pair of a turn.
        old_logprobs: [K] log-prob of each token before the update.
        reference_logprobs: [K] log-prob under the initial policy.
        token_trajectory: [K] index of the turn of a token.
        beta: β.

    Source: the gradient of Rafailov et al. 2023, arXiv:2305.18290, eq. 7.
    """
    advantages = rewards.double().clone()
    ratios = torch.zeros_like(advantages).index_add(0, token_trajectory, (old_logprobs - reference_logprobs).double())
    for pair in torch.unique(group):
        members = torch.nonzero(group == pair).flatten()
        if len(members) != 2:
            continue
        better, worse = members[rewards[members].argsort(descending=True)].tolist()
        weight_factor = torch.sigmoid(-beta * (ratios[better] - ratios[worse]))
        weight = 0.5 * (rewards[better] - rewards[worse]).double()
        advantages[better], advantages[worse] = weight * weight_factor, -weight * weight_factor
    return advantages
