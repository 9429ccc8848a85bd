"""How are adapters sampled at the speed of the model they stand on? From a copy that has taken them in.

Products as thin as an adapter cost more than they compute, and a layer with one beside it is not drawn by the quick
path. Each new version is added to the weights in float32 and rounded once.

Easy to get wrong: the copy needs the adapters as they were handed over. Where sampling goes on while they are trained,
those of the model are newer.
"""

from __future__ import annotations

import torch

from whetstone.compute_thread import run_in_compute_thread
from whetstone.inference.local import LocalEngine
from whetstone.inference.protocol import InFlight, Weights
from whetstone.policies import Policy, merged_weights, without_adapters


class MergingEngine(LocalEngine):
    """A local engine for a policy with adapters; twice the memory of the model they stand on.

    Args:
        policy: Its adapters are those last handed over.
        rows: As of `LocalEngine`.
        version: As of `LocalEngine`.
        cache_bytes: As of `LocalEngine`.
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
        """See `Engine.load_weights`. Of what is handed over the adapters count; the rest does not change."""
        merged = await run_in_compute_thread(self._taken_in, weights)
        await super().load_weights(merged, version, in_flight=in_flight)

    @torch.no_grad()
    def _taken_in(self, weights: Weights) -> Weights:
        for name, parameter in self._policy.model.named_parameters():
            if name in weights and weights[name] is not parameter:
                parameter.copy_(weights[name])
        own = dict(self._plain.named_parameters())
        return {**own, **merged_weights(self._policy.model, self._policy.dtype)}
