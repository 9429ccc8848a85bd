"""Credit and losses as pure functions: tensors in, tensors out; each cites its source."""

from whetstone.algorithms.advantage_transforms import ADVANTAGE_TRANSFORMS
from whetstone.algorithms.advantages import ADVANTAGES, gae, group_relative, whitened
from whetstone.algorithms.corrections import CORRECTIONS, importance_weights, masked, truncated
from whetstone.algorithms.credit_filters import CREDIT_FILTERS
from whetstone.algorithms.levels import (
    Credit,
    Level,
    PerToken,
    PerTrajectory,
    PerTurn,
    columns_of,
    has_ratio_to_sampler,
    is_flat_without_advantage,
    level_of,
    removal_scope_of,
)
from whetstone.algorithms.loss_terms import LOSS_TERMS, LossTerm, Over, Schedule
from whetstone.algorithms.mismatch import mismatch
from whetstone.algorithms.objectives import (
    OBJECTIVES,
    AdvantageLoss,
    SumLoss,
    TokenLoss,
    clipped,
    clipped_value,
    entropy_bonus,
    entropy_smoothing,
    reference_kl,
    squared_value,
    success_value,
    supervised,
    token_weights,
    usual_entropy,
)
from whetstone.algorithms.shaping import SHAPING

__all__ = [
    "ADVANTAGES",
    "ADVANTAGE_TRANSFORMS",
    "CORRECTIONS",
    "CREDIT_FILTERS",
    "LOSS_TERMS",
    "OBJECTIVES",
    "SHAPING",
    "AdvantageLoss",
    "Credit",
    "Level",
    "LossTerm",
    "Over",
    "PerToken",
    "PerTrajectory",
    "PerTurn",
    "Schedule",
    "SumLoss",
    "TokenLoss",
    "clipped",
    "clipped_value",
    "columns_of",
    "entropy_bonus",
    "entropy_smoothing",
    "gae",
    "group_relative",
    "has_ratio_to_sampler",
    "importance_weights",
    "is_flat_without_advantage",
    "level_of",
    "masked",
    "mismatch",
    "reference_kl",
    "removal_scope_of",
    "squared_value",
    "success_value",
    "supervised",
    "token_weights",
    "truncated",
    "usual_entropy",
    "whitened",
]  # fmt: skip
