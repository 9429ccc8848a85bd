"""Advantages normalized to mean 0 and variance 1 over the batch.

Note: Over tokens, long episodes count more; the caller selects the axis, and nothing is weighted here.
"""

from __future__ import annotations

import torch
from torch import Tensor


def whitened(advantages: Tensor) -> Tensor:
    """Normalize advantages to mean 0 and sample variance 1.

        (A − mean) / √(var + 1e-8)

    Args:
        advantages: [K]; a single or constant value gives zeros.

    Source: Andrychowicz et al. 2020, arXiv:2006.05990, §3.5 (advantage normalisation).
    """
    if len(advantages) < 2 or bool((advantages == advantages[0]).all()):
        return torch.zeros_like(advantages)
    centered = advantages - advantages.mean()
    return centered / (advantages.var() + 1e-8).sqrt()
