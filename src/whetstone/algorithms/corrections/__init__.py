"""What tokens drawn under another policy count for. A weight per token, without gradient, on the loss per token."""

from whetstone.algorithms.corrections.masked import masked
from whetstone.algorithms.corrections.sequence import (
    geometric,
    interpolated_old,
    sequence_masked,
    sequence_truncated,
)
from whetstone.algorithms.corrections.truncated import importance_weights, truncated

CORRECTIONS = {
    "geometric": geometric,
    "masked": masked,
    "sequence_masked": sequence_masked,
    "sequence_truncated": sequence_truncated,
    "truncated": truncated,
}

__all__ = [
    "CORRECTIONS",
    "geometric",
    "importance_weights",
    "interpolated_old",
    "masked",
    "sequence_masked",
    "sequence_truncated",
    "truncated",
]
