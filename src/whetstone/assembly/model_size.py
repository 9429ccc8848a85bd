"""Sizes of a model that determine its memory: parameters, KV cache, activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from whetstone.recipe import OptimizerSettings

_LAYER_STATES = 16
"""Maximum number of hidden-size activations that a layer keeps for its backward pass, including casts."""
_GATE_STATES = 6
"""Number of intermediate-size activations that a gated layer keeps, including casts."""
_LOGIT_STATES = 3
"""Number of logit-size tensors: logits, log-softmax, temporary."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes that determine the memory of a model."""

    parameters: int
    layers: int = 0
    """Number of layers; 0, like all following fields, if the configuration of the model does not contain it."""
    hidden: int = 0
    inner: int = 0
    """Intermediate size of the feed-forward part."""
    keys: int = 0
    """Number of key values per token and layer."""
    vocabulary: int = 0
    context: int = 0

    def cache_bytes(self, tokens: int, dtype: torch.dtype) -> int:
        """Compute the size of the KV cache."""
        return 2 * self.layers * self.keys * tokens * dtype.itemsize

    def activation_bytes(self, tokens: int, settings: OptimizerSettings) -> int:
        """Compute an upper bound of the activations of a forward and backward pass."""
        per_layer = 4 * tokens * (_LAYER_STATES * self.hidden + _GATE_STATES * self.inner)
        held_bytes = per_layer * self.layers
        if settings.activation_checkpointing:
            held_bytes = per_layer + 4 * tokens * self.hidden * self.layers
        logits = min(settings.logits_memory_mb * 2**20, 4 * tokens * self.vocabulary)
        return held_bytes + per_layer + _LOGIT_STATES * logits  # gradients of one layer equal its activations

    def count_lora_parameters(self, rank: int) -> int:
        """Compute the number of LoRA parameters for all linear layers."""
        attention = 4 * self.hidden + 2 * (self.hidden + self.keys)
        return self.layers * rank * (attention + 3 * (self.hidden + self.inner))
