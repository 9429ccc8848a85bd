"""Credit and losses as pure functions: tensors in, tensors out; each cites its source."""

from whetstone.algorithms.advantages import ADVANTAGES, gae, group_relative, whitened
from whetstone.algorithms.corrections import CORRECTIONS, importance_weights, masked, truncated
from whetstone.algorithms.mismatch import mismatch
from whetstone.algorithms.objectives import OBJECTIVES, TokenLoss, clipped, reference_kl, squared_value, supervised

__all__ = [
    "ADVANTAGES",
    "CORRECTIONS",
    "OBJECTIVES",
    "TokenLoss",
    "clipped",
    "gae",
    "group_relative",
    "importance_weights",
    "masked",
    "mismatch",
    "reference_kl",
    "squared_value",
    "supervised",
    "truncated",
    "whitened",
]
