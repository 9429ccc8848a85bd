"""Interfaces of inference engines: tokens in, tokens out, each with its log-prob and policy version.

`Engine` is the protocol that custom engines implement. `Sampling`, `GenerateRequest`, `Generation` and `Scores` are its
data.
"""

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
"""[start, end) spans of a sequence in tokens, in order and without overlap."""

OnTokens = Callable[[Sequence[int]], bool]
"""Streaming callback: receives all tokens sampled so far, on the event loop. Return True to stop the generation."""

InFlight = Literal["drain", "continue", "recompute"]
"""How a weight sync treats generations in flight.

- `drain`: They finish under the old weights first; no new generation starts meanwhile.
- `continue`: They continue immediately with the KV cache of the old weights; later tokens have the new version.
- `recompute`: They continue immediately; their KV cache is recomputed under the new weights.
"""


class Constraint(Protocol):
    """Constrained decoding: the tokens allowed next, given those sampled so far.

    Each generation needs a separate instance, which the engine calls once per token.
    """

    def allowed(self, sampled: Sequence[int]) -> np.ndarray:
        """Return [V] whether each token may be sampled next.

        Tokens beyond the end of the array may not.

        Args:
            sampled: All tokens of the generation so far, including forced tokens.
        """
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters.

    The constraint is applied first, then the bias, then the temperature. `top_k`, `top_p` and `min_p` follow in this
    order, each on the result of the one before, and the remaining probabilities are normalized.

    Raises:
        ValueError: If a value is outside its range, or a stop string is empty.
    """

    max_new_tokens: int
    """Maximum number of tokens of the answer, including forced tokens; at least 1."""
    temperature: float = 1.0
    """Divisor of the logits, at least 0; 0 takes the most likely token."""
    top_k: int = 0
    """Number of most likely tokens to sample from, 0 for all. Ties with the last one are included."""
    top_p: float = 1.0
    """Probability mass of the most likely tokens to sample from."""
    min_p: float = 0.0
    """Minimum probability, as a fraction of the most likely token's."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id → number added to its logit; −inf forbids the token."""
    forced: tuple[int, ...] = ()
    """Leading tokens of the answer that are given rather than sampled; they count towards `max_new_tokens`."""
    stop_ids: frozenset[int] = frozenset()
    """Token ids that end the generation; the one sampled is the last of the tokens returned."""
    stop_strings: tuple[str, ...] = ()
    """Strings that end the generation; the token that completes one is the last returned."""
    seed: int = 0
    """Random seed. With the position of a token it determines the sample; nothing else does."""
    constraint: Constraint | None = None
    """Constraint on the tokens of this generation; None: every token is allowed."""
    top_logprobs: int = 0
    """Number of most likely tokens to return per position, in `Generation.tops`."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature: must be at least 0, got {self.temperature:g}")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens: must be at least 1, got {self.max_new_tokens}")
        if self.top_k < 0:
            raise ValueError(f"top_k: must be at least 0 (all), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: must be in (0, 1], got {self.top_p:g}")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p: must be in [0, 1], got {self.min_p:g}")
        if not all(self.stop_strings):
            raise ValueError("stop_strings: an empty string would stop immediately; remove it")


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Request to continue a prompt, the argument of `Engine.generate`."""

    prompt: TokenSequence
    """Tokens to continue. A prefix that was computed before is reused, most reliably within an episode."""
    sampling: Sampling
    """Sampling parameters of the answer."""
    episode: str
    """Name of the episode that the request belongs to; see `Engine.abort` and `Engine.forget`."""
    sampled_spans: Spans = ()
    """Spans of the prompt that this engine sampled, in this episode or in one that shares the prefix. Engines that
    compute sampled tokens differently from given ones compute them as before, so the result does not depend on which
    keys are still cached."""
    on_tokens: OnTokens | None = None
    """Called with the first token immediately and with more from time to time, but not with the last. If it returns
    True, the generation ends with finish `abort`, a few tokens later."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Sampled tokens of one request, the result of `Engine.generate`."""

    tokens: tuple[int, ...]
    """[T] the sampled ids, forced ones first, the stop token included."""
    logprobs: tuple[float, ...]
    """[T] natural log-prob of each token under the *sampling* distribution: after bias, temperature, top-k, top-p and
    min-p. At temperature 0 it is 0 for every sampled token. A forced token that the distribution excludes has −inf."""
    entropies: tuple[float, ...]
    """[T] entropy in nats of the sampling distribution (at temperature 0: of the model's); NaN if the engine does not
    support it."""
    versions: tuple[int, ...]
    """[T] policy version that sampled each token."""
    finish: Literal["stop", "length", "abort"]
    """Finish reason. `stop`: a stop token or string was sampled. `length`: the maximum of tokens or of the context was
    reached. `abort`: the request was aborted."""
    queue_seconds: float = 0.0
    """Time before the first forward pass, in seconds."""
    model_logprobs: tuple[float, ...] = ()
    """[T] natural log-prob of each token under the *model's* distribution: temperature 1, no bias, no truncation; NaN
    if the engine does not support it."""
    tops: tuple[Mapping[int, float], ...] = ()
    """[T] most likely tokens at each position with their log-probs under the model's distribution, in descending order;
    empty if `Sampling.top_logprobs` is 0."""
    measured: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By name, [T] further numbers per token; see `Tokens.measured`."""

    def __getitem__(self, span: slice) -> Generation:
        """Return the generation restricted to a contiguous span of its tokens, with their columns."""
        measured = {name: column[span] for name, column in self.measured.items()}
        return replace(self, measured=measured, **{name: getattr(self, name)[span] for name in _TOKEN_COLUMNS})

    def to_tokens(self) -> Tokens:
        """Convert to the tokens of an action, with log-probs, versions, entropies and measurements."""
        return Tokens.from_samples(
            self.tokens,
            logprobs=self.logprobs,
            versions=self.versions,
            entropies=self.entropies,
            measured=self.measured,
        )

    def __add__(self, other: Generation) -> Generation:
        """Concatenate with a continuation, which determines the finish reason.

        Numbers that only one part has in `measured` are NaN in the other.
        """
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
    """Log-probs and entropies of given tokens at temperature 1, the result of `Engine.score`."""

    logprobs: tuple[float, ...]
    """[T − start] natural log-prob of each token from `start` on, given all before it."""
    entropies: tuple[float, ...]
    """[T − start] entropy in nats of the distribution that predicts each token; NaN if the engine does not support
    it."""


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Counters of an engine since it was created; logged as metrics of a run."""

    requests: int = 0
    """Number of finished generations and scorings."""
    failed: int = 0
    """Number of requests that ended in an error."""
    prefill_tokens: int = 0
    """Number of prompt tokens computed."""
    cached_tokens: int = 0
    """Number of prompt tokens found in the KV cache."""
    decode_tokens: int = 0
    """Number of tokens computed one at a time."""
    steps: int = 0
    """Number of decode steps."""
    evictions: int = 0
    """Number of times an idle sequence lost its KV slot to another."""
    queue_seconds: float = 0.0
    """Total time that requests waited for their first forward pass, in seconds."""
    busy_seconds: float = 0.0
    """Time spent in forward passes, in seconds."""
    rows: int = 0
    """Number of KV slots."""

    @property
    def cache_hit_rate(self) -> float:
        """Fraction of prompt tokens that were found in the KV cache, in [0, 1]; 0 before the first prompt."""
        total = self.prefill_tokens + self.cached_tokens
        return self.cached_tokens / total if total else 0.0

    @property
    def slot_occupancy(self) -> float:
        """Mean fraction of the KV slots that sampled a token in a decode step, in [0, 1].

        0 before the first step.
        """
        return self.decode_tokens / (self.steps * self.rows) if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """Capabilities of an engine.

    `check_capabilities` rejects a recipe that needs more, before the run starts.
    """

    entropies: bool = True
    """Whether entropies of the full distribution are returned; otherwise every entropy is NaN."""
    model_logprobs: bool = True
    """Whether `Generation.model_logprobs` is known for all sampling parameters; otherwise unknown values are NaN."""
    forced_tokens: bool = True
    """Whether `Sampling.forced` is supported for all sampling parameters; otherwise only at temperature 1, without bias
    or truncation."""
    logit_bias: bool = True
    """Whether `Sampling.logit_bias` is supported."""
    seeds: bool = True
    """Whether samples depend only on `Sampling.seed`; otherwise the same seed gives other tokens each time."""
    scores: bool = True
    """Whether `Engine.score` is supported."""
    constraints: bool = True
    """Whether `Sampling.constraint` is supported."""
    top_logprobs: bool = True
    """Whether `Sampling.top_logprobs` is supported."""
    media: bool = False
    """Whether images are supported in prompts and in tokens to score."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Load of an engine at one moment."""

    kv_usage: float
    """Fraction of the KV cache that sequences in progress use, in [0, 1]."""
    waiting: int
    """Number of requests that wait for room in the engine."""
    preemptions: int
    """Number of sequences so far that lost their keys to another one and are recomputed."""


class ReportsLoad(Protocol):
    """Optional protocol of an engine that reports its load; required by `rollout.max_in_flight: auto`."""

    async def measure_load(self) -> EngineLoad:
        """Return the current load.

        Raises:
            EngineError: If the engine cannot report its load; the message has the remedy.
            InfrastructureError: If the engine does not respond.
        """
        ...


class HasTokenizer(Protocol):
    """Optional protocol of an engine with a tokenizer, which should be the policy's."""

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text, without special tokens.

        Args:
            text: Text to tokenize.

        Raises:
            InfrastructureError: If the engine does not respond.
        """
        ...


class SupportsSleep(Protocol):
    """Optional protocol of an engine that can free device memory while it is idle."""

    async def sleep(self) -> None:
        """Free the KV cache until the next request.

        The call does nothing while requests are in flight. Cached prefixes are recomputed later, with the same result.
        """
        ...


class Engine(Protocol):
    """Inference engine: samples tokens from a model for many concurrent callers.

    A recipe names an engine by `engine`. Built-in engines are `LocalEngine`, `VLLMEngine` and `SGLangEngine`. All
    methods are called on one event loop.
    """

    @property
    def capabilities(self) -> EngineCapabilities:
        """Capabilities of the engine, constant over its lifetime."""
        ...

    @property
    def version(self) -> int:
        """Policy version of the loaded weights."""
        ...

    @property
    def statistics(self) -> EngineStatistics:
        """Counters since the engine was created."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the engine can respond; False after it was closed or failed permanently."""
        ...

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample a continuation of a prompt.

        Cancelling the call abandons the generation.

        Args:
            request: Prompt, sampling parameters and episode.

        Returns:
            The sampled tokens with log-probs and policy versions.

        Raises:
            PromptTooLong: If the prompt leaves no room in the context.
            EngineError: If the prompt has media, and the engine does not support them.
            InfrastructureError: If the engine failed or was closed.
        """
        ...

    async def score(self, tokens: TokenSequence, *, start: int = 1) -> Scores:
        """Compute log-probs and entropies of given tokens at temperature 1.

        Cached keys of a shared prefix may be used.

        Args:
            tokens: [T] tokens to score.
            start: Index of the first token that is scored, from 1 to T − 1.

        Raises:
            ValueError: If `start` is out of range.
            EngineError: If the tokens have media, and the engine does not support them.
            PromptTooLong: If the tokens exceed the context.
            InfrastructureError: If the engine failed or was closed.
        """
        ...

    def abort(self, episode: str) -> None:
        """End the generations of an episode early.

        Their calls of `generate` return the tokens sampled so far, with finish reason `abort`.

        Args:
            episode: Name of the episode, as in `GenerateRequest.episode`.
        """
        ...

    def forget(self, episode: str) -> None:
        """Release the KV cache of a finished episode.

        Args:
            episode: Name of the episode; an unknown name has no effect.
        """
        ...

    async def load_weights(self, weights: Weights, version: int, *, in_flight: InFlight = "drain") -> None:
        """Load weights; when the call returns, the engine samples from them.

        Args:
            weights: Parameters by name.
            version: Policy version of tokens sampled from the new weights.
            in_flight: How running generations are treated.
        """
        ...

    async def close(self) -> None:
        """Release all resources; pending calls raise `InfrastructureError`."""
        ...
