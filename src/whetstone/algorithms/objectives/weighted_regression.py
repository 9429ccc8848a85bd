"""Advantage-weighted regression (AWR), and regression of the log-ratio to the advantage (WebRL).

Note: Weighted imitation never decreases a probability by itself, so entropy falls. Regression has gradient 0 at its
target and changes sign beyond it.
"""

from __future__ import annotations

from typing import Literal

import torch

from whetstone.algorithms.axes import PerToken
from whetstone.algorithms.kl_estimate import kl_estimate
from whetstone.algorithms.objectives.gspo import sequence_mean
from whetstone.algorithms.objectives.token_loss import TokenLoss, log_ratio, same_length
from whetstone.bounded_types import Positive


def advantage_weighted(
    learner_logprobs: PerToken, advantages: PerToken, *, temperature: Positive = 1.0, max_weight: Positive = 20.0
) -> TokenLoss:
    """Compute imitation of sampled tokens, weighted by the exponential of the advantage (AWR).

        L = −min(exp(A / β), w_max) ℓ

    Made for stored data; with A of 0 and 1 from `digirl`, use `policy_gradient`, which filters hard.

    Args:
        learner_logprobs: [T] log-probs of the learner, with gradient.
        advantages: [T] advantage of each token.
        temperature: Temperature β of the exponential weight, above 0.
        max_weight: Maximum weight of a turn.

    Raises:
        ValueError: If β is not above 0.

    Source: Peng et al. 2019, arXiv:1910.00177, eq. 9; the cap is an addition.
    """
    same_length(learner_logprobs, advantages)
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature:g}")
    weight = (advantages / temperature).clamp(max=80).exp().clamp(max=max_weight)
    capped = (weight == max_weight).to(weight.dtype)
    return TokenLoss(-weight * learner_logprobs, {"policy/sample_weight": weight, "policy/capped_fraction": capped})


def advantage_regression(
    learner_logprobs: PerToken,
    reference_logprobs: PerToken,
    advantages: PerToken,
    sequence: PerToken,
    turn: PerToken,
    *,
    temperature: Positive = 1.0,
    form: Literal["smooth", "squared"] = "smooth",
    negatives: Literal["drop", "keep"] = "drop",
) -> TokenLoss:
    """Regress the mean log-ratio of each turn to the reference to its advantage (WebRL).

        d = mean over the turn's tokens of (ℓ − ℓ_ref);   L = smooth-L1(β d − A) / β, or (β d − A)²

    The optimum of reward minus β times the divergence from the reference has β log(π/π_ref) = A. Each token of a turn
    has the loss of the turn.

    Args:
        learner_logprobs: [T] log-probs of the learner, with gradient.
        reference_logprobs: [T] log-probs under the policy of the preceding phase.
        advantages: [T] the same for all tokens of a turn.
        sequence: [T] index of the trajectory of each token.
        turn: [T] index of the token's turn within the trajectory.
        temperature: Temperature β: factor of the log-ratio that is regressed to the advantage.
        form: `smooth` as in the released code, `squared` as in the paper.
        negatives: `drop` excludes turns with A < 0, as in the released code.

    Source: Qi et al. 2024 (WebRL), arXiv:2411.02337, §3.2, and its code. Differs from the code: the mean is over a
    turn's own tokens, there over the batch's; and d is pulled back if it overshoots, while β shrinks there instead.
    """
    same_length(learner_logprobs, advantages, sequence, turn)
    key = sequence * (int(turn.max()) + 1 if len(turn) else 1) + turn
    log_ratios = log_ratio(learner_logprobs, reference_logprobs)
    through = log_ratios - log_ratios.detach()
    # the value at each token is the turn's mean; the gradient is the token's part of it
    mean = sequence_mean(log_ratios.detach(), key) + through
    miss = temperature * mean - advantages
    if form == "squared":
        loss = miss.square()
    else:
        loss = torch.where(miss.abs() < 1, 0.5 * miss.square(), miss.abs() - 0.5) / temperature
    is_trained = torch.ones_like(loss, dtype=torch.bool) if negatives == "keep" else advantages >= 0
    metrics = {"policy/reference_kl": kl_estimate(log_ratios.detach(), "k3")}
    return TokenLoss(torch.where(is_trained, loss, 0.0), metrics)
