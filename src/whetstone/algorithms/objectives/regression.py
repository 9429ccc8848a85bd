"""What if credit is a target rather than a push? Weighted imitation, and regression of the log-ratio.

Easy to get wrong: imitation with weights never makes anything less likely, so entropy falls; regression stops where its
target is reached, and turns back beyond it.
"""

from __future__ import annotations

from typing import Literal

import torch

from whetstone.algorithms.kl_estimate import kl_estimate
from whetstone.algorithms.levels import PerToken
from whetstone.algorithms.objectives.gspo import mean_of
from whetstone.algorithms.objectives.token_loss import TokenLoss, log_ratio, same_length
from whetstone.ranges import Positive


def advantage_weighted(
    learner_logprobs: PerToken, advantages: PerToken, *, temperature: Positive = 1.0, max_weight: Positive = 20.0
) -> TokenLoss:
    """Imitation of oneself, more of what earned more (AWR).

        L = −min(exp(A / β), w_max) ℓ

    Made for stored data; with A of 0 and 1 from `digirl`, use `policy_gradient`, which filters hard.

    Args:
        learner_logprobs: [T] with gradient.
        advantages: [T]
        temperature: β, above 0.
        max_weight: Maximum weight of a turn.

    Raises:
        ValueError: β is not above 0.

    Source: Peng et al. 2019, arXiv:1910.00177, eq. 9; the cap is ours.
    """
    same_length(learner_logprobs, advantages)
    if temperature <= 0:
        raise ValueError(f"temperature is above 0: got {temperature:g}")
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
    """Each turn's mean log-ratio to the reference, regressed to its advantage (WebRL).

        d = mean over the turn's tokens of (ℓ − ℓ_ref);   L = smooth-L1(β d − A) / β, or (β d − A)²

    The optimum of reward minus β times the divergence from the reference has β log(π/π_ref) = A. The loss is the
    turn's, laid on each of its tokens.

    Args:
        learner_logprobs: [T] with gradient.
        reference_logprobs: [T] under the policy of the phase before.
        advantages: [T] the same for a whole turn.
        sequence: [T] which trajectory each token belongs to.
        turn: [T] which turn of it.
        temperature: β.
        form: The released code's, or the paper's.
        negatives: Whether turns with A < 0 are left out, as in the released code.

    Source: Qi et al. 2024 (WebRL), arXiv:2411.02337, §3.2, and its code. Departs from the code: the mean is over a
    turn's own tokens, there over the batch's; and d is pulled back where it overshoots, where there β shrinks instead.
    """
    same_length(learner_logprobs, advantages, sequence, turn)
    key = sequence * (int(turn.max()) + 1 if len(turn) else 1) + turn
    apart = log_ratio(learner_logprobs, reference_logprobs)
    through = apart - apart.detach()
    # in value the turn's mean at each of its tokens; in gradient each token's own share of it
    mean = mean_of(apart.detach(), key) + through
    miss = temperature * mean - advantages
    if form == "squared":
        loss = miss.square()
    else:
        loss = torch.where(miss.abs() < 1, 0.5 * miss.square(), miss.abs() - 0.5) / temperature
    kept = torch.ones_like(loss, dtype=torch.bool) if negatives == "keep" else advantages >= 0
    metrics = {"policy/reference_kl": kl_estimate(apart.detach(), "k3")}
    return TokenLoss(torch.where(kept, loss, 0.0), metrics)
