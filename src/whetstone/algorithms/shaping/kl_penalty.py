"""How is divergence from a reference paid for, rather than pulled at? As a cost per token, before credit.

Easy to get wrong: it reaches the policy through returns, so an estimator that reads outcomes alone never sees it.
"""

from __future__ import annotations

from whetstone.algorithms.kl_estimate import LOG_RATIO_BOUND
from whetstone.algorithms.levels import PerToken
from whetstone.ranges import NotNegative


def kl_penalty(
    token_rewards: PerToken, old_logprobs: PerToken, reference_logprobs: PerToken, *, weight: NotNegative = 0.01
) -> PerToken:
    """Token rewards less the log-ratio to the reference (k1 in the reward); no gradient.

        ρ_k ← ρ_k − β (log π_old − log π_ref)

    Log-ratios are kept within ±20.

    Args:
        token_rewards: [K] a turn's reward on its last action token, the outcome on the last of all.
        old_logprobs: [K] the learner's before the update.
        reference_logprobs: [K] under the frozen reference.
        weight: β.

    Source: Ouyang et al. 2022, arXiv:2203.02155, eq. 2; verl's `kl_penalty`.
    """
    gap = (old_logprobs.double() - reference_logprobs.double()).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return token_rewards.double() - weight * gap
