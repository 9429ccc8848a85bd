"""The seam of the inference room: tokens in, tokens out, each with the log-prob and version it was drawn under."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

Weights = Mapping[str, Tensor]
"""Parameters by name."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next tokens are drawn.

    Raises:
        ValueError: A negative temperature, or no token allowed.
    """

    max_new_tokens: int
    temperature: float = 1.0
    """Logits are divided by it; 0 takes the likeliest token."""
    stop_ids: frozenset[int] = frozenset()
    """Drawing one of these ends the generation; it is the last of the tokens returned."""
    seed: int = 0
    """With the position of a token it decides the draw; nothing else does."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature: zero or more, got {self.temperature:g}")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens: one or more, got {self.max_new_tokens}")


@dataclass(frozen=True, slots=True)
class Generation:
    """What an engine drew."""

    tokens: tuple[int, ...]
    """[T] the sampled ids, the stop token included."""
    logprobs: tuple[float, ...]
    """[T] natural log-prob of each under the sampling distribution, that is, after temperature.
    At temperature 0 that is 0 for every token: the draw was certain."""
    entropies: tuple[float, ...]
    """[T] entropy in nats of the model's distribution, at the sampling temperature (at 1 where that is 0)."""
    versions: tuple[int, ...]
    """[T] the policy version that drew each token."""
    finish: Literal["stop", "length"]
    """`stop`: a stop token was drawn. `length`: the tokens or the context ran out first."""
    queue_seconds: float = 0.0
    """Time before the first forward pass."""


class Engine(Protocol):
    """Draws tokens from a model for many callers at once."""

    @property
    def version(self) -> int:
        """The policy version now loaded."""
        ...

    async def generate(self, prompt: Sequence[int], sampling: Sampling, *, episode: str) -> Generation:
        """Continue `prompt`. Calls of one `episode` share what was already computed for it.

        Raises:
            PromptTooLong: The prompt leaves no room in the context.
            InfrastructureError: The engine failed or was closed.
        """
        ...

    def forget(self, episode: str) -> None:
        """The episode is over; what is kept for it may go."""
        ...

    async def load_weights(self, weights: Weights, version: int) -> None:
        """Draw from these weights from now on."""
        ...

    async def close(self) -> None:
        """Let go of everything; calls still waiting fail."""
        ...
