"""M2PO: masks tokens with the largest log-ratios until the second moment of the rest is below a bound.

Note: A bound on each token would exclude rare tokens only because they are rare. The bound is on the mean square of
the remaining tokens.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.axes import PerToken
from whetstone.bounded_types import Positive


def m2po(
    advantages: PerToken, old_logprobs: PerToken, sampler_logprobs: PerToken, *, bound: Positive = 0.04
) -> PerToken:
    """Set the advantages of the tokens with the largest |ℓ_old − ℓ_sampler| to 0 (M2PO).

    Tokens are masked until the mean square of the remaining gaps is below `bound`. The token with the smallest gap is
    always kept. Tokens that were not sampled (NaN) have no gap and are in no mean. Intended for
    `reinforcement.max_staleness`, with wide clips.

    Args:
        advantages: [K] advantage of each action token.
        old_logprobs: [K] log-probs of the learner before the update.
        sampler_logprobs: [K] log-probs of the sampler.
        bound: Maximum mean square τ of the log-ratios, above 0.

    Raises:
        ValueError: If the bound is not above 0.

    Source: Zheng et al. 2025 (M2PO), arXiv:2510.01161, §4, in AReaL's form; the authors' own code derives clip widths
    from the bound instead, using only the tokens that are pushed further.
    """
    if bound <= 0:
        raise ValueError(f"bound must be above 0, got {bound:g}")
    sampled = torch.nonzero(~sampler_logprobs.isnan()).flatten()
    gaps = old_logprobs.double()[sampled] - sampler_logprobs.double()[sampled]
    squares, order = gaps.square().sort(stable=True)
    means = squares.cumsum(0) / torch.arange(1, len(squares) + 1, device=squares.device)
    beyond = means >= bound
    beyond[:1] = False
    masked = advantages.clone()
    masked[sampled[order[beyond]]] = 0.0
    return masked
