"""Entropy-aware advantages: tokens with high entropy get a larger weight, whatever their sign (AEPO).

Note: Over a micro-batch the result would depend on how an update was cut. Here it is over the batch.
"""

from __future__ import annotations

from whetstone.algorithms.axes import PerToken
from whetstone.algorithms.group_statistics import standard_deviation
from whetstone.bounded_types import NotNegative


def entropy_aware(advantages: PerToken, entropies: PerToken, *, weight: NotNegative = 0.2) -> PerToken:
    """Scale advantages by the standardized entropy of their token (AEPO).

        A_k ← A_k · max(0, 1 + a (H_k − mean H) / std H)      over the action tokens of the batch

    Equal entropies change nothing. The factor never changes the sign. Tokens whose entropy was not measured (NaN) are
    in no statistic and keep their advantage.

    Args:
        advantages: [K] advantage of each action token.
        entropies: [K] entropy of the distribution that each token was sampled from, in nats; without gradient.
        weight: Factor a of the standardized entropy.

    Source: Dong et al. 2025, arXiv:2510.14545, §3.3, and its code, whose statistics are over micro-batches and whose
    factor may be negative.
    """
    entropies = entropies.detach().double()
    measured = entropies[~entropies.isnan()]
    std = standard_deviation(measured)
    if len(measured) == 0 or std < 1e-8:
        return advantages
    z = ((entropies - measured.mean()) / std).nan_to_num(0.0)
    return advantages * (1 + weight * z).clamp(min=0)
