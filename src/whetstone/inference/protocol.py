"""Interfaces of inference engines: tokens in, tokens out, each with its log-prob and policy version."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from whetstone.tokens import Tokens, TokenSequence

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Weights: TypeAlias = "Mapping[str, Tensor]"
"""Parameters by name."""

Spans = Sequence[tuple[int, int]]
"""[start, end) of a sequence, in order, without overlap."""

OnTokens = Callable[[Sequence[int]], bool]
"""Streaming callback: receives all tokens sampled so far, on the event loop. Return True to stop the generation."""

InFlight = Literal["drain", "continue", "recompute"]
"""What becomes of generations under way when weights change.

- `drain`: they finish under the old weights first; nothing new starts meanwhile.
- `continue`: they go on at once over the keys of the old weights; tokens after carry the new version.
- `recompute`: they go on at once, what they have so far is computed again under the new weights.
"""


class Constraint(Protocol):
    """What may be drawn next, given what was. It belongs to one generation, and is asked once a token."""

    def allowed(self, drawn: Sequence[int]) -> np.ndarray:
        """[V] whether each token may follow; tokens beyond its end may not.

        Args:
            drawn: All that was drawn before, forced tokens among it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next tokens are drawn.

    What a constraint forbids goes first; bias is added, then the temperature divides, then `top_k`, `top_p` and `min_p`
    each see what the one before left, and what remains is scaled to sum to 1.

    Raises:
        ValueError: A value outside its range, or an empty stop string.
    """

    max_new_tokens: int
    temperature: float = 1.0
    """Logits are divided by it; 0 takes the likeliest token."""
    top_k: int = 0
    """Only the likeliest so many; 0 for all. Tokens as likely as the last of them stay too."""
    top_p: float = 1.0
    """Only the likeliest, until together they have this probability."""
    min_p: float = 0.0
    """Only those at least this share of the likeliest one's probability."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id → what is added to its logit; −inf forbids it."""
    forced: tuple[int, ...] = ()
    """The first tokens of the answer, given rather than drawn; they count towards `max_new_tokens`."""
    stop_ids: frozenset[int] = frozenset()
    """Drawing one of these ends the generation; it is the last of the tokens returned."""
    stop_strings: tuple[str, ...] = ()
    """So does text that comes to hold one of these; the token that completes it is the last returned."""
    seed: int = 0
    """With the position of a token it decides the draw; nothing else does."""
    constraint: Constraint | None = None
    """Which tokens may be drawn at all; None: any."""
    top_logprobs: int = 0
    """How many of the likeliest tokens are named at each place."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature: zero or more, got {self.temperature:g}")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens: one or more, got {self.max_new_tokens}")
        if self.top_k < 0:
            raise ValueError(f"top_k: zero (all) or more, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: above 0, at most 1, got {self.top_p:g}")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p: from 0 to 1, got {self.min_p:g}")
        if not all(self.stop_strings):
            raise ValueError("stop_strings: an empty string would stop at once; leave it out")


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One request for a generation."""

    prompt: TokenSequence
    """Tokens to continue. A prefix that was computed before is reused, most reliably within an episode."""
    sampling: Sampling
    """Sampling parameters."""
    episode: str
    """Name of the episode; see `Engine.abort` and `Engine.forget`."""
    sampled_spans: Spans = ()
    """Spans of the prompt that this engine sampled, in this episode or in one that shares the prefix. Engines that
    compute sampled tokens differently from given ones compute them as before, so the result does not depend on which
    keys are still cached."""
    on_tokens: OnTokens | None = None
    """Called with the first token at once and with more from time to time, not with the last. If it returns True, the
    generation ends with finish `abort`, a few tokens later."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What an engine drew."""

    tokens: tuple[int, ...]
    """[T] the sampled ids, forced ones first, the stop token included."""
    logprobs: tuple[float, ...]
    """[T] natural log-prob of each under the *sampling* distribution: after bias, temperature and cuts.
    At temperature 0 that is 0 for every token drawn: the draw was certain. A forced token that the cuts
    forbid has −inf."""
    entropies: tuple[float, ...]
    """[T] entropy in nats of the sampling distribution (at temperature 0: of the model's own); NaN where the engine
    does not give it."""
    versions: tuple[int, ...]
    """[T] the policy version that drew each token."""
    finish: Literal["stop", "length", "abort"]
    """`stop`: a stop token or string was drawn. `length`: the tokens or the context ran out first.
    `abort`: somebody asked for what there was."""
    queue_seconds: float = 0.0
    """Time before the first forward pass."""
    model_logprobs: tuple[float, ...] = ()
    """[T] natural log-prob of each under the *model's* distribution: temperature 1, no bias, no cuts; NaN where the
    engine does not give it."""
    tops: tuple[Mapping[int, float], ...] = ()
    """[T] most likely tokens at each position with their log-probs under the model's distribution, in descending order;
    empty if `Sampling.top_logprobs` is 0."""
    measured: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By name, [T] further numbers per token; see `Tokens.measured`."""

    def __getitem__(self, span: slice) -> Generation:
        """The tokens of a contiguous span, with their columns."""
        measured = {name: column[span] for name, column in self.measured.items()}
        return replace(self, measured=measured, **{name: getattr(self, name)[span] for name in _TOKEN_COLUMNS})

    def to_tokens(self) -> Tokens:
        """Return the tokens of an action, with their columns."""
        return Tokens.sampled(
            self.tokens,
            logprobs=self.logprobs,
            versions=self.versions,
            entropies=self.entropies,
            measured=self.measured,
        )

    def __add__(self, other: Generation) -> Generation:
        """This generation, continued by another one, which decides the finish reason."""
        measured = {
            name: self.measured.get(name, (math.nan,) * len(self.tokens))
            + other.measured.get(name, (math.nan,) * len(other.tokens))
            for name in {**self.measured, **other.measured}
        }
        columns = {name: getattr(self, name) + getattr(other, name) for name in _TOKEN_COLUMNS}
        return replace(other, queue_seconds=self.queue_seconds or other.queue_seconds, measured=measured, **columns)


_TOKEN_COLUMNS = ("tokens", "logprobs", "entropies", "versions", "model_logprobs", "tops")


@dataclass(frozen=True, slots=True)
class Scores:
    """What a model thinks of given tokens, at temperature 1."""

    logprobs: tuple[float, ...]
    """[T − start] natural log-prob of each token from `start` on, given all before it."""
    entropies: tuple[float, ...]
    """[T − start] nats, of the distribution each was predicted from; NaN where the engine does not give it."""


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """What an engine has done since it was made."""

    requests: int = 0
    """Generations and scorings finished."""
    failed: int = 0
    """Requests that ended in an error."""
    prefill_tokens: int = 0
    """Prompt tokens computed."""
    cached_tokens: int = 0
    """Prompt tokens whose keys were there already."""
    decode_tokens: int = 0
    """Tokens computed one at a time."""
    steps: int = 0
    """Forward passes that drew tokens for everyone running."""
    evictions: int = 0
    """Times a resting sequence lost its keys to another."""
    queue_seconds: float = 0.0
    """Time all requests together waited for their first forward pass."""
    busy_seconds: float = 0.0
    """Time spent in forward passes."""
    rows: int = 0
    """Sequences that fit."""

    @property
    def cache_hit_rate(self) -> float:
        """Share of prompt tokens that were not computed again; 0 before the first."""
        asked = self.prefill_tokens + self.cached_tokens
        return self.cached_tokens / asked if asked else 0.0

    @property
    def occupancy(self) -> float:
        """Mean share of the rows that drew a token in a step; 0 before the first."""
        return self.decode_tokens / (self.steps * self.rows) if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class EngineAbilities:
    """What of the protocol an engine gives. What needs more is refused before anything begins (`abilities.py`)."""

    entropies: bool = True
    """The entropy of each whole distribution; without it every entropy is NaN."""
    model_logprobs: bool = True
    """`Generation.model_logprobs` however tokens are drawn; without it those that are not known are NaN."""
    forced_tokens: bool = True
    """`Sampling.forced` however tokens are drawn; without it only at temperature 1, with neither bias nor cuts."""
    logit_bias: bool = True
    """`Sampling.logit_bias`."""
    seeds: bool = True
    """Draws that depend on `Sampling.seed` alone; without it the same seed draws other tokens each time."""
    scores: bool = True
    """`Engine.score`."""
    constraints: bool = True
    """`Sampling.constraint`."""
    top_logprobs: bool = True
    """`Sampling.top_logprobs`."""
    media: bool = False
    """Media in prompts and in tokens to score."""


class ReadsText(Protocol):
    """An engine that has a tokenizer of its own, which had better be the policy's."""

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """The ids it reads a text as, without any it would add.

        Raises:
            InfrastructureError: It could not be asked.
        """
        ...


class Sleeps(Protocol):
    """An engine that can make room on its device while nobody asks it."""

    async def sleep(self) -> None:
        """Let go of the memory of keys and values until the next request, which wakes it; nothing where it is at work.

        What episodes had computed so far is computed again, as it was.
        """
        ...


class Engine(Protocol):
    """Draws tokens from a model for many callers at once."""

    @property
    def abilities(self) -> EngineAbilities:
        """What it gives."""
        ...

    @property
    def version(self) -> int:
        """The policy version now loaded."""
        ...

    @property
    def statistics(self) -> EngineStatistics:
        """What was done so far."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it can answer; one that was closed, or failed for good, cannot."""
        ...

    async def generate(self, request: GenerateRequest) -> Generation:
        """Continue a prompt. Cancelling the call abandons the generation.

        Raises:
            PromptTooLong: The prompt leaves no room in the context.
            EngineError: The prompt has media, and the engine cannot show them to its model.
            InfrastructureError: The engine failed or was closed.
        """
        ...

    async def score(self, tokens: TokenSequence, *, start: int = 1) -> Scores:
        """Compute log-probs and entropies of given tokens from `start` on; the prefix may be shared.

        Raises:
            ValueError: `start` is not from 1 to the last token.
            EngineError: The tokens have media, and the engine cannot show them to its model.
            PromptTooLong: There are more tokens than the context holds.
            InfrastructureError: The engine failed or was closed.
        """
        ...

    def abort(self, episode: str) -> None:
        """Generations of the episode under way return what they have, with finish `abort`."""
        ...

    def forget(self, episode: str) -> None:
        """The episode is over; what is kept for it may go."""
        ...

    async def load_weights(self, weights: Weights, version: int, *, in_flight: InFlight = "drain") -> None:
        """Draw from these weights from now on; returns when that is so."""
        ...

    async def close(self) -> None:
        """Let go of everything; calls still waiting fail."""
        ...
