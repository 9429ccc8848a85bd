"""Importance sampling corrections: a weight per token, without gradient, that multiplies the loss per token."""

from whetstone.algorithms.importance_sampling.masked import masked as masked
from whetstone.algorithms.importance_sampling.sequence import (
    geometric as geometric,
    interpolated_old as interpolated_old,
    sequence_masked as sequence_masked,
    sequence_truncated as sequence_truncated,
)
from whetstone.algorithms.importance_sampling.truncated import (
    importance_weights as importance_weights,
    truncated as truncated,
)

CORRECTIONS = {
    "geometric": geometric,
    "masked": masked,
    "sequence_masked": sequence_masked,
    "sequence_truncated": sequence_truncated,
    "truncated": truncated,
}
