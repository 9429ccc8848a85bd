"""Supervised fine-tuning loss: negative log-likelihood of demonstrated tokens."""

from __future__ import annotations

from typing import Literal

import torch

from whetstone.algorithms.axes import PerToken
from whetstone.algorithms.objectives.token_loss import TokenLoss


def supervised(learner_logprobs: PerToken, *, weigh: Literal["none", "probability", "both_ways"] = "none") -> TokenLoss:
    """Compute the negative log-likelihood of demonstrated tokens.

        L = −w ℓ,   w = 1, or sg[p], or sg[p (1 − p)]: tokens neither known nor hopeless

    As an objective of reinforcement, with `filters: [rejection]`, it is rejection fine-tuning.

    Args:
        learner_logprobs: [T] log-probs of action tokens, with gradient; prompts and observations are not included.
        weigh: Weight of each token: none (1), its probability, or probability times (1 − probability).

    Source: Zelikman et al. 2022, arXiv:2203.14465, and any supervised fine-tuning; weights: Zhang et al. 2025 (CHORD),
    arXiv:2508.11408, and DataMind, arXiv:2509.25084.
    """
    with torch.no_grad():
        p = learner_logprobs.detach().exp()
        weight = {"none": torch.ones_like(p), "probability": p, "both_ways": p * (1 - p)}[weigh]
    return TokenLoss(-weight * learner_logprobs, {"policy/token_probability": p})
