"""How does a model learn to do what an expert did? By making each of the expert's tokens likelier."""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.objectives.clipped import TokenLoss


def supervised(learner_logprobs: Tensor) -> TokenLoss:
    """The negative log-likelihood of demonstrated tokens.

        L = −ℓ

    Args:
        learner_logprobs: [T] log-probs of the demonstrated action tokens; prompts and observations are not in it.

    Source: Zelikman et al. 2022, arXiv:2203.14465, and any supervised fine-tuning; loss on action tokens only.
    """
    with torch.no_grad():
        metrics = {"policy/likelihood": learner_logprobs.detach().exp()}
    return TokenLoss(-learner_logprobs, metrics)
