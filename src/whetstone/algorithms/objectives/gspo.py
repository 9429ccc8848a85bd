"""GSPO: clipped surrogate with one ratio per sequence, the geometric mean of its token ratios.

Note: A mean log-ratio is small, so clip widths are a thousandth of PPO's; 0.2 would never clip.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from whetstone.algorithms.axes import PerToken
from whetstone.algorithms.objectives.token_loss import AdvantageLoss, TokenLoss, ratio_metrics, same_length
from whetstone.bounded_types import NotNegative, Share


def gspo(
    learner_logprobs: PerToken,
    old_logprobs: PerToken,
    advantages: PerToken,
    sequence: PerToken,
    turn: PerToken,
    *,
    clip_low: Share = 3e-4,
    clip_high: NotNegative = 4e-4,
    level: Literal["trajectory", "turn"] = "trajectory",
    pool: Literal["token", "mean"] = "token",
) -> AdvantageLoss:
    """Compute the clipped surrogate with one ratio per sequence (GSPO), in its token form.

        s = exp(mean over the sequence of (ℓ − ℓ_old));   s_k = s in value, exp(ℓ_k) · s / sg[exp(ℓ_k)] in gradient
        L = max(−A_k s_k, −A_k clip(s_k, 1 − clip_low, 1 + clip_high))

    If a sequence is clipped, none of its tokens is trained; fractions of 10 to 30 % are normal. With one token it is
    PPO. s is at most e^10; beyond, it has no gradient.
    Use it with `aggregation: sequence_mean`.

    Args:
        learner_logprobs: [T] log-probs of the learner, with gradient.
        old_logprobs: [T] log-probs of the learner before this update.
        advantages: [T] advantage of each token.
        sequence: [T] index of the trajectory of each token.
        turn: [T] index of the token's turn within the trajectory.
        clip_low: Maximum decrease of s below 1.
        clip_high: Maximum increase of s above 1.
        level: `turn` treats each turn as a separate sequence.
        pool: `mean` gives all tokens of a sequence their mean advantage, which drops credit differences within it.

    Source: Zheng et al. 2025, arXiv:2507.18071, eq. 7 and 14; turns and pooling are options of this project
    and of AReaL.
    """
    same_length(learner_logprobs, old_logprobs, advantages, sequence, turn)
    key = sequence if level == "trajectory" else sequence * (int(turn.max()) + 1 if len(turn) else 1) + turn
    log_ratios = learner_logprobs - old_logprobs.detach()
    mean = sequence_mean(log_ratios.detach(), key)
    through = log_ratios - log_ratios.detach()  # 0 in value
    ratio = (mean + through).clamp(max=10.0).exp()
    weight = sequence_mean(advantages, key) if pool == "mean" else advantages
    unclipped, clipped_loss = -weight * ratio, -weight * ratio.clamp(1 - clip_low, 1 + clip_high)
    return TokenLoss(
        torch.maximum(unclipped, clipped_loss),
        ratio_metrics(mean.clamp(max=10.0), clip_fraction=clipped_loss > unclipped),
    )


def sequence_mean(x: Tensor, key: Tensor) -> Tensor:
    """Compute the mean over each token's sequence, [T].

    Source: the 1/|y| of arXiv:2507.18071, eq. 7.
    """
    if len(x) == 0:
        return x
    of, count = torch.unique(key, return_inverse=True, return_counts=True)[1:]
    means: Tensor = x.new_zeros(len(count)).index_add(0, of, x) / count
    return means[of]
