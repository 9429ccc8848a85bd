"""SAPO: a smooth gate around ratio 1 instead of a clip."""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import PerToken
from whetstone.algorithms.objectives.token_loss import AdvantageLoss, TokenLoss, log_ratio, ratio_metrics, same_length
from whetstone.bounded_types import Positive


def sapo(
    learner_logprobs: PerToken,
    old_logprobs: PerToken,
    advantages: PerToken,
    *,
    temperature: Positive = 1.0,
    negative_temperature: Positive = 1.05,
) -> AdvantageLoss:
    """Compute the policy loss with a soft gate on the ratio (SAPO).

        L = −A (4/τ) σ(τ (ρ − 1)),   with separate τ for A > 0 and for the rest

    Its slope at ρ = 1 is that of PPO. Use it with `aggregation: sequence_mean`.

    Args:
        learner_logprobs: [T] log-probs of the learner, with gradient.
        old_logprobs: [T] log-probs of the learner before this update.
        advantages: [T] advantage of each token.
        temperature: Sharpness τ of the gate if A > 0.
        negative_temperature: Sharpness τ of the gate if A ≤ 0; a larger value closes the gate sooner.

    Source: Gao et al. 2025, arXiv:2511.20347, eq. 5.
    """
    same_length(learner_logprobs, advantages)
    log_ratios = log_ratio(learner_logprobs, old_logprobs)
    positive, other = (torch.full_like(advantages, tau) for tau in (temperature, negative_temperature))
    tau = torch.where(advantages > 0, positive, other)
    gate = (tau * (log_ratios.exp() - 1)).sigmoid() * 4 / tau
    return TokenLoss(-advantages * gate, ratio_metrics(log_ratios))
