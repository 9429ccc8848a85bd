"""What tokens drawn under another policy count for. A weight per token, without gradient, on the loss per token."""

from whetstone.algorithms.corrections.masked import masked
from whetstone.algorithms.corrections.truncated import importance_weights, truncated

CORRECTIONS = {"masked": masked, "truncated": truncated}

__all__ = ["CORRECTIONS", "importance_weights", "masked", "truncated"]
