"""Credit and losses as pure functions: tensors in, tensors out; each cites its source."""

from whetstone.algorithms.advantages import ADVANTAGES, group_relative
from whetstone.algorithms.mismatch import mismatch
from whetstone.algorithms.objectives import OBJECTIVES, TokenLoss, clipped, reference_kl, supervised

__all__ = [
    "ADVANTAGES",
    "OBJECTIVES",
    "TokenLoss",
    "clipped",
    "group_relative",
    "mismatch",
    "reference_kl",
    "supervised",
]
