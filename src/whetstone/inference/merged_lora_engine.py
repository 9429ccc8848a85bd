"""Engine that samples LoRA adapters merged into a copy of the base model, at the speed of the base model.

Matrix products as thin as an adapter are inefficient, and layers with adapters do not use the fast path. Each new
version is added to the weights in float32 and rounded once.

Note:
    The copy needs the adapters of the last weight sync. If sampling continues during training, those of the model in
    training are newer.
"""

from __future__ import annotations

import torch

from whetstone.compute_thread import run_in_compute_thread
from whetstone.inference.local_engine import LocalEngine
from whetstone.inference.protocol import InFlight, Weights
from whetstone.policies import Policy, merged_weights, without_adapters


class MergedLoraEngine(LocalEngine):
    """Local engine that samples LoRA adapters merged into a copy of the base model.

    The copy doubles the memory of the base model. `engine: local` creates this engine if `uses_merged_weights` allows
    it.

    Args:
        policy: Policy with LoRA adapters. The engine copies the adapters of each weight sync into this model.
        rows: Number of KV slots; see `LocalEngine`.
        version: Policy version of the current weights.
        cache_bytes: Maximum size of the KV cache in bytes; None: unlimited.
    """

    def __init__(self, policy: Policy, *, rows: int, version: int = 0, cache_bytes: int | None = None) -> None:
        self._policy = policy
        plain = without_adapters(policy.model, merge=False).to(policy.dtype)
        plain.load_state_dict(merged_weights(policy.model, policy.dtype), strict=False)
        self._plain = plain.requires_grad_(False)
        super().__init__(
            plain,
            context_length=policy.context_length,
            rows=rows,
            cache_bytes=cache_bytes,
            version=version,
            detokenize=policy.tokenizer.decode,
        )

    async def load_weights(self, weights: Weights, version: int, *, in_flight: InFlight = "drain") -> None:
        """Merge new adapters into the copy and sample from it; see `Engine.load_weights`.

        Base weights in `weights` are ignored.
        """
        merged = await run_in_compute_thread(self._taken_in, weights)
        await super().load_weights(merged, version, in_flight=in_flight)

    @torch.no_grad()
    def _taken_in(self, weights: Weights) -> Weights:
        """Return the weights of the copy with the new adapters merged."""
        for name, parameter in self._policy.model.named_parameters():
            if name in weights and weights[name] is not parameter:
                parameter.copy_(weights[name])
        own = dict(self._plain.named_parameters())
        return {**own, **merged_weights(self._policy.model, self._policy.dtype)}
