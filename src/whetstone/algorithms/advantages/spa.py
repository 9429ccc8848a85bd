"""SPA: splits a delayed reward among turns by a head whose outputs sum to it.

Note: The head must be trained on failed episodes too, or every contribution is the same.
"""

from __future__ import annotations

from typing import Literal

import torch

from whetstone.algorithms.advantages.gae import gae
from whetstone.algorithms.advantages.whitened import whitened
from whetstone.algorithms.axes import Credit, CreditPerTurn, PerTrajectory, PerTurn
from whetstone.algorithms.returns import is_last_step
from whetstone.bounded_types import NotNegative, Share


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
    """Compute GAE over turns with rewards that a learned head splits among them (after SPA-RL).

        r_t = α c_t + β g_t;   c minimizes   (Σ_t c_t − R)²

    The targets move each contribution by its fraction of the residual: c_t − (Σ c − R), so that half the squared
    distance has the gradient of the sum's.

    Args:
        outcomes: [N] R of each trajectory.
        contributions: [M] c after the action of each turn.
        grounded: [M] 1 if the environment could execute the action.
        values: [M] value before each turn.
        last_values: [N] value after the last turn if the episode was truncated, otherwise 0.
        trajectory: [M] index of the trajectory of each turn.
        contribution_weight: Weight α of the learned contributions.
        grounding_weight: Weight β of executable actions.
        residual: `last` puts R − Σc on the last turn, so that undiscounted returns are exact; `none` trusts the
            contributions only, as the paper does with a model trained to its end before.
        discount: γ per turn.
        trace: λ of GAE, in [0, 1].
        whiten: Normalize the advantages of the batch to mean 0 and variance 1.

    Source: Wang et al. 2025, arXiv:2505.20732, §4. The paper trains a separate progress estimator on finished
    rollouts and freezes it; here contributions are a linear function of the policy's hidden states that is trained
    together with it on the same episodes; with `residual: last` they split the outcome and do not change its sum. It
    was not tested whether they are the contributions of turns. Not reproduced from the paper's scripts:
    values overwritten by leave-one-out outcomes, and rewards multiplied by the number of remaining turns, which zeroes
    the last.
    """
    contributions = contributions.double()
    total = contributions.new_zeros(len(outcomes)).index_add_(0, trajectory, contributions)
    missing = outcomes.double() - total
    shares = contributions
    if residual == "last":
        shares = shares + torch.where(is_last_step(trajectory), missing[trajectory], 0.0)
    rewards = contribution_weight * shares + grounding_weight * grounded.double()
    advantages = gae(rewards, values, trajectory, last_values, discount=discount, trace=trace)
    targets = {"contributions": contributions + missing[trajectory], "values": advantages + values.double()}
    return Credit(whitened(advantages) if whiten else advantages, targets)
