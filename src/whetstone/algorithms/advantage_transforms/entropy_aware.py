"""Should more be learned where the policy is unsure? Tokens of high entropy count more, whatever their sign.

Easy to get wrong: over a micro-batch the result would depend on how an update was cut. Here it is over the batch.
"""

from __future__ import annotations

from whetstone.algorithms.levels import PerToken
from whetstone.algorithms.sets import deviation
from whetstone.ranges import NotNegative


def entropy_aware(advantages: PerToken, entropies: PerToken, *, weight: NotNegative = 0.2) -> PerToken:
    """Advantages times one plus a share of how unusual the token's entropy is (AEPO).

        A_k ← A_k · max(0, 1 + a (H_k − mean H) / std H)      over the action tokens of the batch

    Equal entropies change nothing. The factor never turns the sign. Tokens whose entropy was not measured (NaN) are in
    no statistic and keep theirs.

    Args:
        advantages: [K]
        entropies: [K] nats, of the distribution each token was drawn from; without gradient.
        weight: a.

    Source: Dong et al. 2025, arXiv:2510.14545, §3.3, and its code, whose statistics are over micro-batches and whose
    factor may be negative.
    """
    entropies = entropies.detach().double()
    measured = entropies[~entropies.isnan()]
    std = deviation(measured)
    if len(measured) == 0 or std < 1e-8:
        return advantages
    z = ((entropies - measured.mean()) / std).nan_to_num(0.0)
    return advantages * (1 + weight * z).clamp(min=0)
