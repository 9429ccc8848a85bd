"""KL penalty to the reference model, per token.

Note: The log-ratio itself (k1) as a loss has an expected gradient of 0 and no effect. Half its square (k2) has the
gradient of the reverse KL on samples of the policy; k3 has that of the forward KL.
"""

from __future__ import annotations

from whetstone.algorithms.axes import PerToken
from whetstone.algorithms.kl_estimate import LOG_RATIO_BOUND, Estimator, kl_estimate
from whetstone.algorithms.objectives.token_loss import TokenLoss


def reference_kl(learner_logprobs: PerToken, reference_logprobs: PerToken, *, estimator: Estimator = "k2") -> TokenLoss:
    """Estimate KL(policy ‖ reference) per token; the default estimator also has the gradient of the KL.

        d = ℓ − ℓ_ref,   L = d² / 2      (k2)

    Equal policies give exactly 0 and no gradient. Log-ratios are clamped to ±20, and k3 to 10 per token.

    Args:
        learner_logprobs: [T] log-probs of the learner, with gradient.
        reference_logprobs: [T] log-probs under the frozen reference, at the same temperature.
        estimator: See `kl_estimate`.

    Raises:
        ValueError: If the tensors differ in shape.

    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html; why k2 belongs in the loss: arXiv:2510.01555.
    """
    if learner_logprobs.shape != reference_logprobs.shape:
        shapes = [[*learner_logprobs.shape], [*reference_logprobs.shape]]
        raise ValueError(f"learner and reference log-probs must have the same shape, got {shapes}")
    d = (learner_logprobs - reference_logprobs.detach()).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return TokenLoss(kl_estimate(d, estimator), {"policy/reference_kl": kl_estimate(d.detach(), "k3")})


def first_attempt_kl(
    learner_logprobs: PerToken, reference_logprobs: PerToken, first_attempt: PerToken, *, estimator: Estimator = "k2"
) -> TokenLoss:
    """Compute `reference_kl` on the tokens of a first attempt; the loss of all later tokens is 0.

    Args:
        learner_logprobs: [T] log-probs of the learner, with gradient.
        reference_logprobs: [T] log-probs under the frozen reference, at the same temperature.
        first_attempt: [T] 1 up to the first answer of an episode, 0 after it.
        estimator: See `kl_estimate`.

    Raises:
        ValueError: If the tensors differ in shape.

    Source: Kumar et al. 2024 (SCoRe), arXiv:2409.12917, §4.1.
    """
    penalty = reference_kl(learner_logprobs, reference_logprobs, estimator=estimator)
    return TokenLoss(first_attempt * penalty.loss, penalty.metrics)
