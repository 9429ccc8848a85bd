"""Mismatch of sampler and learner: metrics of the difference of their log-probs on the same tokens.

Note: Log-probs are comparable only at the same temperature; the learner divides its logits by it.
"""

from __future__ import annotations

from torch import Tensor

from whetstone.algorithms.kl_estimate import LOG_RATIO_BOUND, kl_estimate


def mismatch_metrics(learner_logprobs: Tensor, sampler_logprobs: Tensor) -> dict[str, float]:
    """Compute the difference of the learner's and the sampler's log-probs on the same tokens and weights.

        d = ℓ_learner − ℓ_sampler;   k3 = exp(d) − 1 − d, at most 10 per token, an estimate of KL(sampler ‖ learner)

    Args:
        learner_logprobs: [T] log-probs of the learner.
        sampler_logprobs: [T] log-probs of the sampler on the same tokens; without tokens, all metrics are 0.

    Source: the k3 of Schulman 2020, "Approximating KL divergence", http://joschu.net/blog/kl-approx.html.
    """
    if learner_logprobs.numel() == 0:
        return {"sampler/mismatch_mean": 0.0, "sampler/mismatch_max": 0.0, "sampler/mismatch_kl": 0.0}
    d = (learner_logprobs.double() - sampler_logprobs.double()).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return {
        "sampler/mismatch_mean": d.abs().mean().item(),
        "sampler/mismatch_max": d.abs().max().item(),
        "sampler/mismatch_kl": kl_estimate(-d, "k3").mean().item(),
    }
