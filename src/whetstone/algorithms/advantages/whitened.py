"""How are advantages of different problems brought to one size? Mean 0 and variance 1 over all that are trained on.

Easy to get wrong: over tokens long episodes count more; what is handed over decides, here nothing is weighted.
"""

from __future__ import annotations

import torch
from torch import Tensor


def whitened(advantages: Tensor) -> Tensor:
    """Advantages with mean 0 and sample variance 1.

        (A − mean) / √(var + 1e-8)

    Args:
        advantages: [K]; one alone, or all the same, give zeros.

    Source: Andrychowicz et al. 2020, arXiv:2006.05990, §3.5 (advantage normalisation).
    """
    if len(advantages) < 2 or bool((advantages == advantages[0]).all()):
        return torch.zeros_like(advantages)
    apart = advantages - advantages.mean()
    return apart / (advantages.var() + 1e-8).sqrt()
