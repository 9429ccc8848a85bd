"""What does a turn of live learning count for? What somebody said of it; of a pair, what DPO's gradient says.

Easy to get wrong: the pair's weight is that of the weights before the update. With one update of each batch, as live
learning makes, it is the gradient exactly.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.levels import PerToken, PerTrajectory
from whetstone.ranges import Positive


def standardised(rewards: PerTrajectory) -> PerTrajectory:
    """How much better than the turns beside it a turn was. That one was let stand says something only beside those that
    were not: what a person took over is −1, and anything else, his own words among it, 0.

        A_i = (r_i − mean(r)) / (std(r) + 1e-6)      over the turns of an update, replayed ones among them

    `std` is the population's. Where all are alike there is nothing to compare, and A is 0.

    Args:
        rewards: [N]

    Source: the reward of Luo et al. 2023 (RLIF), arXiv:2311.12996, which learns values from it; by analogy the mean of
        an update stands for them.
    """
    apart = rewards.double() - rewards.double().mean()
    return apart / (apart.square().mean().sqrt() + 1e-6)


def paired(
    rewards: PerTrajectory,
    group: PerTrajectory,
    old_logprobs: PerToken,
    reference_logprobs: PerToken,
    token_trajectory: PerToken,
    *,
    beta: Positive = 0.1,
) -> PerTrajectory:
    """A turn alone its reward; of two turns in one place what DPO's gradient weighs each of their tokens by, over β.

        Δ = (Σℓ_w − Σref_w) − (Σℓ_l − Σref_l);   A_w = w σ(−β Δ),   A_l = −A_w,   w half of what their rewards differ by

    At Δ = 0 that is ±½; the further apart they are already, the less.

    Args:
        rewards: [N]
        group: [N] which place a turn stands in.
        old_logprobs: [K] of each token before the update.
        reference_logprobs: [K] under the policy it began with.
        token_trajectory: [K] which turn a token is of.
        beta: β.

    Source: the gradient of Rafailov et al. 2023, arXiv:2305.18290, eq. 7.
    """
    found = rewards.double().clone()
    ratios = torch.zeros_like(found).index_add(0, token_trajectory, (old_logprobs - reference_logprobs).double())
    for place in torch.unique(group):
        members = torch.nonzero(group == place).flatten()
        if len(members) != 2:
            continue
        better, worse = members[rewards[members].argsort(descending=True)].tolist()
        apart = torch.sigmoid(-beta * (ratios[better] - ratios[worse]))
        weight = 0.5 * (rewards[better] - rewards[worse]).double()
        found[better], found[worse] = weight * apart, -weight * apart
    return found
