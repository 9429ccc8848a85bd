"""REINFORCE: the policy gradient objective without a ratio or trust region."""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import PerToken
from whetstone.algorithms.objectives.token_loss import AdvantageLoss, TokenLoss, same_length


def policy_gradient(learner_logprobs: PerToken, advantages: PerToken) -> AdvantageLoss:
    """Compute the REINFORCE loss per token.

        L = −A ℓ

    With `importance_correction` it is importance-weighted. It has no trust region: use one update per batch.

    Args:
        learner_logprobs: [T] log-probs of the learner, with gradient.
        advantages: [T] advantage of each token.

    Source: Williams 1992, "Simple statistical gradient-following algorithms"; verl's GPG loss, arXiv:2504.02546.
    """
    same_length(learner_logprobs, advantages)
    with torch.no_grad():
        metrics = {"policy/token_probability": learner_logprobs.detach().exp()}
    return TokenLoss(-advantages * learner_logprobs, metrics)
