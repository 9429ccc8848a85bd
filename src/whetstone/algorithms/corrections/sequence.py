"""What if a whole sequence was drawn by another policy? Its weight is the product of its tokens', or their mean.

Easy to get wrong: a product explodes with length. Beyond a few hundred tokens it is of use only to tell which sequences
to leave out. And what is left out still counts in the divisor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.corrections.truncated import truncated
from whetstone.algorithms.kl_estimate import LOG_RATIO_BOUND
from whetstone.ranges import Positive


def sequence_truncated(
    old_logprobs: Tensor, sampler_logprobs: Tensor, sequence: Tensor, *, high: Positive = 5.0
) -> Tensor:
    """[T] the product of each sequence's weights, at most `high`, for all its tokens (sequence TIS).

    Args:
        old_logprobs: [T] the learner's own before this update.
        sampler_logprobs: [T] as drawn; NaN where nobody drew.
        sequence: [T] which sequence each token belongs to.
        high: C, 2 to 10.

    Source: verl's rollout correction, `seq-TIS`; Precup et al. 2000, "Eligibility traces for off-policy evaluation".
    """
    return _product(old_logprobs, sampler_logprobs, sequence).clamp_max(high)


def sequence_masked(
    old_logprobs: Tensor, sampler_logprobs: Tensor, sequence: Tensor, *, high: Positive = 3.0
) -> Tensor:
    """[T] the product of each sequence's weights, 0 for all its tokens where it is above `high` (sequence MIS).

    Args:
        old_logprobs: [T] the learner's own before this update.
        sampler_logprobs: [T] as drawn; NaN where nobody drew.
        sequence: [T] which sequence each token belongs to.
        high: C.

    Source: TRL's `sequence_mask`; verl's `seq-MIS`, https://verl.readthedocs.io.
    """
    weights = _product(old_logprobs, sampler_logprobs, sequence)
    return torch.where(weights > high, 0.0, weights)


def geometric(
    old_logprobs: Tensor, sampler_logprobs: Tensor, sequence: Tensor, *, width: Positive = 0.01, high: Positive = 2.0
) -> Tensor:
    """[T] truncated weights of tokens, 0 for sequences whose mean ratio is out of bounds.

    The geometric mean does not depend on length: outside of 1 ± `width` the whole sequence is left out.

    Args:
        old_logprobs: [T] the learner's own before this update.
        sampler_logprobs: [T] as drawn; NaN where nobody drew.
        sequence: [T] which sequence each token belongs to.
        width: δ, 0.001 to 0.01.
        high: C of the tokens' own weights.

    Source: SkyRL and verl's rollout correction (geometric rejection), https://verl.readthedocs.io.
    """
    gaps, of, count = _gaps(old_logprobs, sampler_logprobs, sequence)
    mean = (gaps.new_zeros(len(count)).index_add(0, of, gaps) / count).clamp(max=LOG_RATIO_BOUND).exp()[of]
    out = (mean < 1 - width) | (mean > 1 + width)
    return torch.where(out, 0.0, truncated(old_logprobs, sampler_logprobs, high=high))


def interpolated_old(learner_logprobs: Tensor, sampler_logprobs: Tensor, versions: Tensor, now: int) -> Tensor:
    """[T] log-probs of the policy before the update, guessed between the sampler's and the present ones (A-3PO).

        ℓ_old ≈ ℓ_sampler + a (ℓ − ℓ_sampler),   a = (v − 1 − v_s)/(v − v_s);   fresh tokens have the sampler's own,
                                                                               and those nobody drew (v_s < 0) too

    Saves a forward pass. No gradient.

    Args:
        learner_logprobs: [T] of the present weights.
        sampler_logprobs: [T] as drawn.
        versions: [T] v_s, of the policy that drew each token.
        now: v, of the weights that are being made.

    Source: A-3PO 2025, arXiv:2512.06547.
    """
    age = (now - versions).double()
    share = torch.where((age > 1) & (versions >= 0), (age - 1) / age.clamp(min=1), 0.0).to(sampler_logprobs)
    return sampler_logprobs + share * (learner_logprobs.detach() - sampler_logprobs)


def _gaps(old: Tensor, sampler: Tensor, sequence: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-ratios of tokens, 0 where nobody drew. Only what is made of them is bounded."""
    of, count = torch.unique(sequence, return_inverse=True, return_counts=True)[1:]
    if old.shape != sampler.shape:
        raise ValueError(f"one sampler log-prob per token: got {[*old.shape]}, {[*sampler.shape]}")
    return torch.where(sampler.isnan(), 0.0, old.detach() - sampler), of, count


def _product(old: Tensor, sampler: Tensor, sequence: Tensor) -> Tensor:
    gaps, of, count = _gaps(old, sampler, sequence)
    sums = gaps.new_zeros(len(count)).index_add(0, of, gaps).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    weights: Tensor = sums.exp()
    return weights[of]
