"""KL penalty to a reference as a cost per token in the reward.

Note: It reaches the policy through returns, so an estimator that only reads outcomes ignores it.
"""

from __future__ import annotations

from whetstone.algorithms.axes import PerToken
from whetstone.algorithms.kl_estimate import LOG_RATIO_BOUND
from whetstone.bounded_types import NotNegative


def kl_penalty(
    token_rewards: PerToken, old_logprobs: PerToken, reference_logprobs: PerToken, *, weight: NotNegative = 0.01
) -> PerToken:
    """Subtract the log-ratio to the reference from token rewards (k1 in the reward); no gradient.

        ρ_k ← ρ_k − β (log π_old − log π_ref)

    Log-ratios are kept within ±20.

    Args:
        token_rewards: [K] rewards: that of a turn at its last action token, the outcome at the last one.
        old_logprobs: [K] log-probs of the learner before the update.
        reference_logprobs: [K] log-probs under the frozen reference.
        weight: Weight β of the KL penalty.

    Source: Ouyang et al. 2022, arXiv:2203.02155, eq. 2; verl's `kl_penalty`.
    """
    gap = (old_logprobs.double() - reference_logprobs.double()).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return token_rewards.double() - weight * gap
