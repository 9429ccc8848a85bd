"""Estimators of the KL divergence of two policies from one sample: k1, k2 and k3.

Note: k3 grows like the ratio. One token that the second policy finds e²⁰ times as probable would dominate all other
tokens of a step, in mean and gradient, so k3 is bounded.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

Estimator = Literal["k1", "k2", "k3", "k3_as_k2"]

LOG_RATIO_BOUND = 20.0
"""Bound of |log-ratio| before the exponential; beyond it, a token has no gradient."""
K3_BOUND = 10.0
"""Maximum k3 of a token; beyond it, the token has no gradient."""


def kl_estimate(d: Tensor, estimator: Estimator) -> Tensor:
    """Estimate KL(policy ‖ other) from one sample per token.

        k1 = d,   k2 = d² / 2,   k3 = e^(−d) − 1 + d, at most 10;   k3_as_k2: value of k3, gradient of k2

    Args:
        d: [T] log-ratios ℓ − ℓ_other of samples of the policy.

    Raises:
        ValueError: If the estimator is unknown.

    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html; gradients: arXiv:2510.01555; the bound: verl's
    `kl_penalty`.
    """
    if estimator not in get_args(Estimator):
        raise ValueError(f"estimator must be one of {', '.join(get_args(Estimator))}, got {estimator!r}")
    if estimator == "k1":
        return d
    k2 = d.square() / 2
    if estimator == "k2":
        return k2
    k3 = ((-d).clamp(max=LOG_RATIO_BOUND).exp() - 1 + d).clamp(max=K3_BOUND)
    return k3 if estimator == "k3" else k2 - k2.detach() + k3.detach()
