"""Credit assignment and losses as pure functions: tensors in, tensors out; each cites its source."""

from whetstone.algorithms.advantage_transforms import ADVANTAGE_TRANSFORMS as ADVANTAGE_TRANSFORMS
from whetstone.algorithms.advantages import (
    ADVANTAGES as ADVANTAGES,
    gae as gae,
    group_relative as group_relative,
    whitened as whitened,
)
from whetstone.algorithms.importance_sampling import (
    CORRECTIONS as CORRECTIONS,
    importance_weights as importance_weights,
    masked as masked,
    truncated as truncated,
)
from whetstone.algorithms.credit_filters import CREDIT_FILTERS as CREDIT_FILTERS
from whetstone.algorithms.axes import (
    Credit as Credit,
    Level as Level,
    PerToken as PerToken,
    PerTrajectory as PerTrajectory,
    PerTurn as PerTurn,
    column_names as column_names,
    has_ratio_to_sampler as has_ratio_to_sampler,
    is_flat_without_advantage as is_flat_without_advantage,
    annotated_level as annotated_level,
    annotated_removal_scope as annotated_removal_scope,
)
from whetstone.algorithms.loss_terms import (
    LOSS_TERMS as LOSS_TERMS,
    LossTerm as LossTerm,
    Over as Over,
    Schedule as Schedule,
)
from whetstone.algorithms.train_inference_mismatch import mismatch_metrics as mismatch_metrics
from whetstone.algorithms.objectives import (
    OBJECTIVES as OBJECTIVES,
    AdvantageLoss as AdvantageLoss,
    SumLoss as SumLoss,
    TokenLoss as TokenLoss,
    clipped as clipped,
    clipped_value as clipped_value,
    entropy_bonus as entropy_bonus,
    entropy_smoothing as entropy_smoothing,
    reference_kl as reference_kl,
    squared_value as squared_value,
    success_value as success_value,
    supervised as supervised,
    token_weights as token_weights,
    usual_entropy as usual_entropy,
)
from whetstone.algorithms.shaping import SHAPING as SHAPING
