"""Sizes of a model that determine its memory: parameters, KV cache and activations."""

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
    """Dimensions of a model, from which its memory is computed."""

    parameters: int
    """Number of parameters."""
    layers: int = 0
    """Number of layers; 0, like all following fields, if the configuration of the model is unknown."""
    hidden: int = 0
    """Hidden size: numbers per token between layers."""
    inner: int = 0
    """Intermediate size of the feed-forward layers."""
    keys: int = 0
    """Size of the keys per token and layer: number of key-value heads times head size."""
    vocabulary: int = 0
    """Number of tokens in the vocabulary."""
    context: int = 0
    """Maximum number of tokens in the context."""

    def cache_bytes(self, tokens: int, dtype: torch.dtype) -> int:
        """Compute the size of a KV cache in bytes.

        Args:
            tokens: Number of cached tokens, over all sequences.
            dtype: Precision of the cache.
        """
        return 2 * self.layers * self.keys * tokens * dtype.itemsize

    def activation_bytes(self, tokens: int, settings: OptimizerSettings) -> int:
        """Compute an upper bound, in bytes, of the activations of one forward and backward pass.

        Args:
            tokens: Number of tokens in the micro-batch.
            settings: Settings of the stage, for activation checkpointing and the memory limit of logits.
        """
        per_layer = 4 * tokens * (_LAYER_STATES * self.hidden + _GATE_STATES * self.inner)
        held_bytes = per_layer * self.layers
        if settings.activation_checkpointing:
            held_bytes = per_layer + 4 * tokens * self.hidden * self.layers
        logits = min(settings.logits_memory_mb * 2**20, 4 * tokens * self.vocabulary)
        return held_bytes + per_layer + _LOGIT_STATES * logits  # gradients of one layer equal its activations

    def count_lora_parameters(self, rank: int) -> int:
        """Compute the number of LoRA parameters if all linear layers have adapters of this rank."""
        attention = 4 * self.hidden + 2 * (self.hidden + self.keys)
        return self.layers * rank * (attention + 3 * (self.hidden + self.inner))
