"""Losses from log-probs and credit. A loss per token never divides by anything: that is aggregation."""

from whetstone.algorithms.objectives.clipped import TokenLoss, clipped
from whetstone.algorithms.objectives.reference_kl import reference_kl
from whetstone.algorithms.objectives.supervised import supervised
from whetstone.algorithms.objectives.value import squared_value

OBJECTIVES = {"clipped": clipped}

__all__ = ["OBJECTIVES", "TokenLoss", "clipped", "reference_kl", "squared_value", "supervised"]
