"""Should a sequence be clipped as one? Its ratio is the geometric mean of its tokens', and so is its fate.

Easy to get wrong: a mean log-ratio is small, so clip widths are a thousandth of PPO's; 0.2 would clip nothing, ever.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from whetstone.algorithms.levels import PerToken
from whetstone.algorithms.objectives.token_loss import AdvantageLoss, TokenLoss, ratio_metrics, same_length
from whetstone.ranges import NotNegative, Share


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
    """The clipped surrogate with one ratio a sequence (GSPO), in its token form.

        s = exp(mean over the sequence of (ℓ − ℓ_old));   s_k = s in value, exp(ℓ_k) · s / sg[exp(ℓ_k)] in gradient
        L = max(−A_k s_k, −A_k clip(s_k, 1 − clip_low, 1 + clip_high))

    A clipped sequence loses all its tokens; fractions of 10 to 30 % are normal. One token is PPO. Beyond e^10, s stays
    there and has no gradient.
    To be aggregated by `sequence_mean`.

    Args:
        learner_logprobs: [T] with gradient.
        old_logprobs: [T] the learner's own before this update.
        advantages: [T]
        sequence: [T] which trajectory each token belongs to.
        turn: [T] which turn of it.
        clip_low: How far s may fall below 1.
        clip_high: How far it may rise above.
        level: `turn`: every turn is a sequence of its own.
        pool: `mean` gives all tokens of a sequence their mean advantage, which forgets credit inside of it.

    Source: Zheng et al. 2025, arXiv:2507.18071, eq. 7 and 14; turns and pooling are options of ours and of AReaL.
    """
    same_length(learner_logprobs, old_logprobs, advantages, sequence, turn)
    key = sequence if level == "trajectory" else sequence * (int(turn.max()) + 1 if len(turn) else 1) + turn
    log_ratios = learner_logprobs - old_logprobs.detach()
    mean = mean_of(log_ratios.detach(), key)
    through = log_ratios - log_ratios.detach()  # 0 in value
    ratio = (mean + through).clamp(max=10.0).exp()
    weight = mean_of(advantages, key) if pool == "mean" else advantages
    free, held = -weight * ratio, -weight * ratio.clamp(1 - clip_low, 1 + clip_high)
    return TokenLoss(torch.maximum(free, held), ratio_metrics(mean.clamp(max=10.0), clip_fraction=held > free))


def mean_of(x: Tensor, key: Tensor) -> Tensor:
    """[T] the mean over each token's sequence.

    Source: the 1/|y| of arXiv:2507.18071, eq. 7.
    """
    if len(x) == 0:
        return x
    of, count = torch.unique(key, return_inverse=True, return_counts=True)[1:]
    means: Tensor = x.new_zeros(len(count)).index_add(0, of, x) / count
    return means[of]
