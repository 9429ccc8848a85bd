"""What keeps one wild token from deciding for all? A geometric mean of ratios, each held in log space."""

from __future__ import annotations

import torch

from whetstone.algorithms.levels import PerToken
from whetstone.algorithms.objectives.gspo import mean_of
from whetstone.algorithms.objectives.token_loss import AdvantageLoss, TokenLoss, log_ratio, ratio_metrics, same_length
from whetstone.ranges import Positive


def gmpo(
    learner_logprobs: PerToken,
    old_logprobs: PerToken,
    advantages: PerToken,
    sequence: PerToken,
    *,
    clip: Positive = 0.4,
) -> AdvantageLoss:
    """The geometric mean of ratios, each clipped on the side its advantage pushes to (GMPO).

        d_k = ℓ − ℓ_old, at most ε where A > 0, at least −ε where A < 0
        L = −A exp(mean of d),   A the sequence's mean advantage

    ε is in log space: 0.4 bounds a ratio by e^0.4 ≈ 1.49. To be aggregated by `sequence_mean`.

    Args:
        learner_logprobs: [T] with gradient.
        old_logprobs: [T] the learner's own before this update.
        advantages: [T]
        sequence: [T] which trajectory each token belongs to.
        clip: ε.

    Source: Zhao et al. 2025, arXiv:2507.20673, eq. 4, and verl's `geo_mean`.
    """
    same_length(learner_logprobs, advantages, sequence)
    log_ratios = log_ratio(learner_logprobs, old_logprobs)
    credit = mean_of(advantages, sequence)
    held = torch.where(credit > 0, log_ratios.clamp(max=clip), log_ratios.clamp(min=-clip))
    stopped = held.detach() != log_ratios.detach()
    # each token carries its share of the sequence's gradient: the value is the sequence's at every token of it
    mean = mean_of(held.detach(), sequence)
    loss = -credit * (mean + held - held.detach()).exp()
    return TokenLoss(loss, ratio_metrics(log_ratios, clip_fraction=stopped))
