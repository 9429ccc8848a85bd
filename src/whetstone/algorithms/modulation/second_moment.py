"""Which stale tokens make an update unsafe? Those with the largest log-ratios, left out until the rest is small enough.

Easy to get wrong: a bound on each token would leave out rare tokens for being rare. The bound is on the mean square of
those that stay.
"""

from __future__ import annotations

import torch

from whetstone.algorithms.levels import PerToken


def second_moment(
    advantages: PerToken, old_logprobs: PerToken, sampler_logprobs: PerToken, *, bound: float = 0.04
) -> PerToken:
    """Advantages, 0 for the tokens of largest |ℓ_old − ℓ_sampler| until the mean square of the rest is within a bound.

    Tokens nobody drew (NaN) have no gap. Made for `training.max_staleness`, with wide clips.

    Args:
        advantages: [K]
        old_logprobs: [K] the learner's before the update.
        sampler_logprobs: [K] as drawn.
        bound: τ, above 0.

    Raises:
        ValueError: The bound is not above 0.

    Source: Zheng et al. 2025 (M2PO), arXiv:2510.01161, §4; τ as in AReaL's documents.
    """
    if bound <= 0:
        raise ValueError(f"bound is above 0: got {bound:g}")
    gaps = (old_logprobs.double() - sampler_logprobs.double()).nan_to_num(0.0)
    squares, order = gaps.square().sort(stable=True)
    means = squares.cumsum(0) / torch.arange(1, len(squares) + 1, device=squares.device)
    found = advantages.clone()
    found[order[means > bound]] = 0.0
    return found
