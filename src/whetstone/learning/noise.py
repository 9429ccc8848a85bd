"""What is a state a little beside this one? The same tokens, each word's embedding moved a little.

Easy to get wrong: how an update is cut into passes must not change it. So a word is moved alike wherever it stands in
an update, by numbers made of its token id and the update's seed alone.
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
    """Noise on the embeddings of words."""

    scale: float
    """Its deviation, in multiples of the root mean square of the embedding it is added to."""
    seed: int
    """Of the update."""

    def added(self, ids: Tensor, embedded: Tensor) -> Tensor:
        """[…, hidden] noise of mean 0, the same for the same id.

        Sines of random multiples of the id: no table of the vocabulary's size is made.
        """
        draw = torch.Generator().manual_seed(self.seed % 2**63)
        hidden = embedded.shape[-1]
        step, phase = (2 * math.pi * torch.rand(2, hidden, generator=draw, dtype=torch.float64)).to(ids.device)
        wave = math.sqrt(2) * torch.sin(ids.double().unsqueeze(-1) * step + phase)
        size = embedded.detach().square().mean(-1, keepdim=True).sqrt()
        return self.scale * size * wave.to(embedded.dtype)

    @contextlib.contextmanager
    def on(self, model: torch.nn.Module) -> Iterator[None]:
        """The model reads noisy embeddings as long as the block lasts."""
        anything: Any = model

        def noisy(_: torch.nn.Module, given: tuple[Tensor, ...], embedded: Tensor) -> Tensor:
            return embedded + self.added(given[0], embedded)

        hook = anything.get_input_embeddings().register_forward_hook(noisy)
        try:
            yield
        finally:
            hook.remove()
