"""How far apart are two policies, from one sample? The three estimates of a divergence that everybody uses.

Easy to get wrong: k3 grows like the ratio. One token of which the second policy thinks e²⁰ times as much outweighs
every other token of a step, in a mean as well as in a gradient, so it is bounded.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

Estimator = Literal["k1", "k2", "k3", "k3_as_k2"]

LOG_RATIO_BOUND = 20.0
"""Log-ratios are kept within ± this before they are exponentiated; beyond, a token has no gradient."""
K3_BOUND = 10.0
"""No token's k3 is more; beyond, it has no gradient."""


def kl_estimate(d: Tensor, estimator: Estimator) -> Tensor:
    """An estimate of KL(policy ‖ other) from one sample.

        k1 = d,   k2 = d² / 2,   k3 = e^(−d) − 1 + d, at most 10;   k3_as_k2 says k3 and pulls like k2

    Args:
        d: [T] log-ratios ℓ − ℓ_other of samples of the policy.

    Raises:
        ValueError: There is no such estimate.

    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html; gradients: arXiv:2510.01555; the bound: verl's
    `kl_penalty`.
    """
    if estimator not in get_args(Estimator):
        raise ValueError(f"there is no estimate of that name: {estimator!r}")
    if estimator == "k1":
        return d
    k2 = d.square() / 2
    if estimator == "k2":
        return k2
    k3 = ((-d).clamp(max=LOG_RATIO_BOUND).exp() - 1 + d).clamp(max=K3_BOUND)
    return k3 if estimator == "k3" else k2 - k2.detach() + k3.detach()
