"""Sizes of a model that determine its memory: parameters, KV cache, activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from whetstone.recipe import OptimizerSettings

_OF_A_LAYER = 16
"""States as wide as the model that a layer keeps for its backward pass, at most: norms, queries, keys, values, what
attention gives, sums, each again where it is computed in shorter numbers."""
_OF_A_GATE = 6
"""As wide as its inner part: gate, its activation, their products, and those in shorter numbers."""
_OF_LOGITS = 3
"""Logits, what becomes of them, and what is computed on the way."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What a model's memory depends on."""

    parameters: int
    layers: int = 0
    """0, as all that follow, where the model's configuration does not say."""
    hidden: int = 0
    inner: int = 0
    """Width between a layer's two halves."""
    keys: int = 0
    """Numbers in the keys of a token in a layer."""
    vocabulary: int = 0
    context: int = 0

    def cache_bytes(self, tokens: int, dtype: torch.dtype) -> int:
        """Of keys and values of so many tokens."""
        return 2 * self.layers * self.keys * tokens * dtype.itemsize

    def activation_bytes(self, tokens: int, settings: OptimizerSettings) -> int:
        """Of a forward and backward pass over so many tokens, at most."""
        of_layer = 4 * tokens * (_OF_A_LAYER * self.hidden + _OF_A_GATE * self.inner)
        kept = of_layer + 4 * tokens * self.hidden * self.layers if settings.activation_checkpointing else 0
        kept = kept or of_layer * self.layers
        logits = min(settings.logit_megabytes * 2**20, 4 * tokens * self.vocabulary)
        return kept + of_layer + _OF_LOGITS * logits  # the gradients of a layer are as large as what it keeps

    def adapters(self, rank: int) -> int:
        """Parameters of adapters beside all linear layers."""
        attention = 4 * self.hidden + 2 * (self.hidden + self.keys)
        return self.layers * rank * (attention + 3 * (self.hidden + self.inner))
