"""How is a policy kept near the one it started from? By a penalty on the KL divergence, token by token.

Easy to get wrong: the log-ratio itself (k1) in the loss has an expected gradient of zero and holds nothing. Half its
square (k2) has the gradient of the reverse KL on samples of the policy; k3 that of the forward KL.
"""

from __future__ import annotations

from whetstone.algorithms.kl_estimate import LOG_RATIO_BOUND, Estimator, kl_estimate
from whetstone.algorithms.levels import PerToken
from whetstone.algorithms.objectives.token_loss import TokenLoss


def reference_kl(learner_logprobs: PerToken, reference_logprobs: PerToken, *, estimator: Estimator = "k2") -> TokenLoss:
    """An estimate of KL(policy ‖ reference) per token whose gradient, by default, is that of the KL.

        d = ℓ − ℓ_ref,   L = d² / 2      (k2)

    Equal policies give exactly 0 and no gradient. Log-ratios are kept within ±20, and a token's k3 at most 10.

    Args:
        learner_logprobs: [T] with gradient.
        reference_logprobs: [T] under the frozen reference, at the same temperature.
        estimator: See `kl_estimate`.

    Raises:
        ValueError: The tensors differ in shape.

    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html; why k2 belongs in the loss: arXiv:2510.01555.
    """
    if learner_logprobs.shape != reference_logprobs.shape:
        shapes = [[*learner_logprobs.shape], [*reference_logprobs.shape]]
        raise ValueError(f"one reference log-prob per token: got {shapes}")
    d = (learner_logprobs - reference_logprobs.detach()).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return TokenLoss(kl_estimate(d, estimator), {"policy/reference_kl": kl_estimate(d.detach(), "k3")})


def first_attempt_kl(
    learner_logprobs: PerToken, reference_logprobs: PerToken, first_attempt: PerToken, *, estimator: Estimator = "k2"
) -> TokenLoss:
    """`reference_kl` on the tokens of a first attempt; the loss of all later tokens is 0.

    Args:
        learner_logprobs: [T] with gradient.
        reference_logprobs: [T] under the frozen reference, at the same temperature.
        first_attempt: [T] 1 up to the first answer of an episode, 0 after it.
        estimator: See `kl_estimate`.

    Raises:
        ValueError: The tensors differ in shape.

    Source: Kumar et al. 2024 (SCoRe), arXiv:2409.12917, §4.1.
    """
    penalty = reference_kl(learner_logprobs, reference_logprobs, estimator=estimator)
    return TokenLoss(first_attempt * penalty.loss, penalty.metrics)
