"""Which stale tokens make an update unsafe? Those with the largest log-ratios, left out until the rest is small enough.

Easy to get wrong: a bound on each token would leave out rare tokens for being rare. The bound is on the mean square of
those that stay.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.levels import PerToken
from whetstone.ranges import Positive


def m2po(
    advantages: PerToken, old_logprobs: PerToken, sampler_logprobs: PerToken, *, bound: Positive = 0.04
) -> PerToken:
    """Advantages, 0 for the tokens of largest |ℓ_old − ℓ_sampler| until the mean square of the rest is below a bound.

    The token with the smallest gap always stays. Tokens nobody drew (NaN) have no gap and are in no mean. Made for
    `reinforcement.max_staleness`, with wide clips.

    Args:
        advantages: [K]
        old_logprobs: [K] the learner's before the update.
        sampler_logprobs: [K] as drawn.
        bound: τ, above 0.

    Raises:
        ValueError: The bound is not above 0.

    Source: Zheng et al. 2025 (M2PO), arXiv:2510.01161, §4, in AReaL's form; the authors' own code makes clip widths of
    the bound instead, from the tokens alone that are pushed further.
    """
    if bound <= 0:
        raise ValueError(f"bound is above 0: got {bound:g}")
    drawn = torch.nonzero(~sampler_logprobs.isnan()).flatten()
    gaps = old_logprobs.double()[drawn] - sampler_logprobs.double()[drawn]
    squares, order = gaps.square().sort(stable=True)
    means = squares.cumsum(0) / torch.arange(1, len(squares) + 1, device=squares.device)
    beyond = means >= bound
    beyond[:1] = False
    found = advantages.clone()
    found[drawn[order[beyond]]] = 0.0
    return found
