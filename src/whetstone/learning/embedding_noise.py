"""Embedding noise for consistency regularization: the same tokens with perturbed embeddings.

Note:
    The noise must not depend on how an update is divided into passes. It is computed only from the token id and the
    update's seed, so a token id has the same noise everywhere in an update.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class EmbeddingNoise:
    """Noise on token embeddings, equal for equal token ids within an update."""

    scale: float
    """Standard deviation, as a multiple of the root mean square of the embedding."""
    seed: int
    """Seed of the update."""

    def compute_noise(self, ids: Tensor, embedded: Tensor) -> Tensor:
        """Return [..., hidden] noise of mean 0, equal for equal ids.

        The noise is a sine of random multiples of the id, so no table of the size of the vocabulary is needed.

        Args:
            ids: [...] token ids.
            embedded: [..., hidden] embeddings of the tokens, which determine the size of the noise.
        """
        draw = torch.Generator().manual_seed(self.seed % 2**63)
        hidden = embedded.shape[-1]
        step, phase = (2 * math.pi * torch.rand(2, hidden, generator=draw, dtype=torch.float64)).to(ids.device)
        wave = math.sqrt(2) * torch.sin(ids.double().unsqueeze(-1) * step + phase)
        size = embedded.detach().square().mean(-1, keepdim=True).sqrt()
        return self.scale * size * wave.to(embedded.dtype)

    @contextlib.contextmanager
    def add_noise(self, model: torch.nn.Module) -> Iterator[None]:
        """Add the noise to the token embeddings of a model within the `with` block."""
        anything: Any = model

        def noisy(_: torch.nn.Module, inputs: tuple[Tensor, ...], embedded: Tensor) -> Tensor:
            return embedded + self.compute_noise(inputs[0], embedded)

        hook = anything.get_input_embeddings().register_forward_hook(noisy)
        try:
            yield
        finally:
            hook.remove()
