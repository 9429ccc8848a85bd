"""Importance sampling correction per sequence: the product or the geometric mean of the token weights.

Note: The product grows exponentially with length. Beyond a few hundred tokens it is only useful to select sequences
to exclude. Excluded tokens still count in the divisor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whetstone.algorithms.importance_sampling.truncated import truncated
from whetstone.algorithms.kl_estimate import LOG_RATIO_BOUND
from whetstone.bounded_types import Positive


def sequence_truncated(
    old_logprobs: Tensor, sampler_logprobs: Tensor, sequence: Tensor, *, high: Positive = 5.0
) -> Tensor:
    """Compute the product of each sequence's importance weights, at most `high`, for all its tokens [T] (sequence TIS).

    Args:
        old_logprobs: [T] log-probs of the learner before this update.
        sampler_logprobs: [T] log-probs of the sampler; NaN for tokens that were not sampled.
        sequence: [T] index of the sequence of each token.
        high: Maximum weight C of a sequence; 2 to 10 are usual.

    Source: verl's rollout correction, `seq-TIS`; Precup et al. 2000, "Eligibility traces for off-policy evaluation".
    """
    return _product(old_logprobs, sampler_logprobs, sequence).clamp_max(high)


def sequence_masked(
    old_logprobs: Tensor, sampler_logprobs: Tensor, sequence: Tensor, *, high: Positive = 3.0
) -> Tensor:
    """Compute the product of each sequence's importance weights; products above `high` become 0 [T] (sequence MIS).

    Args:
        old_logprobs: [T] log-probs of the learner before this update.
        sampler_logprobs: [T] log-probs of the sampler; NaN for tokens that were not sampled.
        sequence: [T] index of the sequence of each token.
        high: Weight C above which a sequence is excluded.

    Source: TRL's `sequence_mask`; verl's `seq-MIS`, https://verl.readthedocs.io.
    """
    weights = _product(old_logprobs, sampler_logprobs, sequence)
    return torch.where(weights > high, 0.0, weights)


def geometric(
    old_logprobs: Tensor, sampler_logprobs: Tensor, sequence: Tensor, *, width: Positive = 0.01, high: Positive = 2.0
) -> Tensor:
    """Compute truncated weights per token, 0 for sequences whose mean ratio is out of bounds [T].

    The geometric mean does not depend on length: outside of 1 ± `width` the whole sequence is masked.

    Args:
        old_logprobs: [T] log-probs of the learner before this update.
        sampler_logprobs: [T] log-probs of the sampler; NaN for tokens that were not sampled.
        sequence: [T] index of the sequence of each token.
        width: δ, 0.001 to 0.01.
        high: C, the maximum weight of a token.

    Source: SkyRL and verl's rollout correction (geometric rejection), https://verl.readthedocs.io.
    """
    gaps, of, count = _gaps(old_logprobs, sampler_logprobs, sequence)
    mean = (gaps.new_zeros(len(count)).index_add(0, of, gaps) / count).clamp(max=LOG_RATIO_BOUND).exp()[of]
    out = (mean < 1 - width) | (mean > 1 + width)
    return torch.where(out, 0.0, truncated(old_logprobs, sampler_logprobs, high=high))


def interpolated_old(learner_logprobs: Tensor, sampler_logprobs: Tensor, versions: Tensor, now: int) -> Tensor:
    """Interpolate old log-probs between the sampler's and the current ones, [T] (A-3PO).

        ℓ_old ≈ ℓ_sampler + a (ℓ − ℓ_sampler),   a = (v − 1 − v_s)/(v − v_s);   a = 0 for fresh tokens,
                                                                               and for inserted ones (v_s < 0)

    Saves a forward pass. No gradient.

    Args:
        learner_logprobs: [T] log-probs under the current weights.
        sampler_logprobs: [T] log-probs of the sampler.
        versions: [T] v_s, version of the policy that sampled each token.
        now: v, version of the weights that this update produces.

    Source: A-3PO 2025, arXiv:2512.06547.
    """
    age = (now - versions).double()
    fraction = torch.where((age > 1) & (versions >= 0), (age - 1) / age.clamp(min=1), 0.0).to(sampler_logprobs)
    return sampler_logprobs + fraction * (learner_logprobs.detach() - sampler_logprobs)


def _gaps(old: Tensor, sampler: Tensor, sequence: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-ratios (0 for tokens that were not sampled), sequence indices and lengths. The caller bounds them."""
    of, count = torch.unique(sequence, return_inverse=True, return_counts=True)[1:]
    if old.shape != sampler.shape:
        raise ValueError(
            f"old and sampler log-probs must have the same shape, got {[*old.shape]} and {[*sampler.shape]}"
        )
    return torch.where(sampler.isnan(), 0.0, old.detach() - sampler), of, count


def _product(old: Tensor, sampler: Tensor, sequence: Tensor) -> Tensor:
    gaps, of, count = _gaps(old, sampler, sequence)
    sums = gaps.new_zeros(len(count)).index_add(0, of, gaps).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    weights: Tensor = sums.exp()
    return weights[of]
