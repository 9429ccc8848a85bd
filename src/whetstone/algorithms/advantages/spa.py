"""How is a delayed reward split among the turns? By a head that learns numbers whose sum foretells it.

Easy to get wrong: failed episodes must be among those it learns from, or every contribution is the same.
"""

from __future__ import annotations

from typing import Literal

import torch

from whetstone.algorithms.advantages.gae import gae
from whetstone.algorithms.advantages.whitened import whitened
from whetstone.algorithms.levels import Credit, CreditPerTurn, PerTrajectory, PerTurn
from whetstone.algorithms.returns import last_of
from whetstone.ranges import NotNegative, Share


def spa(
    outcomes: PerTrajectory,
    contributions: PerTurn,
    grounded: PerTurn,
    values: PerTurn,
    last_values: PerTrajectory,
    trajectory: PerTurn,
    *,
    contribution_weight: NotNegative = 1.0,
    grounding_weight: NotNegative = 0.5,
    residual: Literal["last", "none"] = "last",
    discount: Share = 0.99,
    trace: Share = 0.95,
    whiten: bool = True,
) -> CreditPerTurn:
    """Rewards split by learned contributions, then generalised advantage estimation over turns (after SPA-RL).

        r_t = α c_t + β g_t;   c learns   (Σ_t c_t − R)²

    The contributions' targets move each by its share of what is missing: c_t − (Σ c − R), so that half the squared
    distance has the gradient of the sum's.

    Args:
        outcomes: [N] R of each trajectory.
        contributions: [M] c, read behind the turn's action.
        grounded: [M] 1 where the environment could do what was asked.
        values: [M] the critic's, in front of each turn.
        last_values: [N] the critic's behind the last turn where a limit cut the episode short, else 0.
        trajectory: [M] which trajectory the turn belongs to.
        contribution_weight: α.
        grounding_weight: β.
        residual: `last` puts R − Σc on the last turn, so that undiscounted returns are exact; `none` trusts the
            contributions alone, as the paper does with a model trained to its end before.
        discount: γ, a turn.
        trace: λ.
        whiten: Bring the advantages of the batch to mean 0 and variance 1.

    Source: Wang et al. 2025, arXiv:2505.20732, §4. The paper trains a progress estimator of its own on finished
    rollouts first and then leaves it as it is; here contributions are a linear reading of the policy's states that
    learns along with it, from the same episodes; with `residual: last` it says how the outcome is split, and never how
    much there is. Whether what it learns is what a turn contributed is not tried. Not reproduced of the paper's
    scripts: values overwritten by leave-one-out outcomes, and rewards multiplied by the turns left, which zeroes the
    last.
    """
    contributions = contributions.double()
    whole = contributions.new_zeros(len(outcomes)).index_add_(0, trajectory, contributions)
    missing = outcomes.double() - whole
    shares = contributions
    if residual == "last":
        shares = shares + torch.where(last_of(trajectory), missing[trajectory], 0.0)
    rewards = contribution_weight * shares + grounding_weight * grounded.double()
    found = gae(rewards, values, trajectory, last_values, discount=discount, trace=trace)
    targets = {"contributions": contributions + missing[trajectory], "values": found + values.double()}
    return Credit(whitened(found) if whiten else found, targets)
