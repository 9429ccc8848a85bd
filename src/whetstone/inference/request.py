"""State of a generation or scoring in progress in the local engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from whetstone.inference.kv_slots import KVSlot
from whetstone.inference.protocol import GenerateRequest, Generation, OnTokens, Sampling, Scores, Spans
from whetstone.inference.sampling import SampledToken


def complement_sampled(keys: Sequence[int], sampled_spans: Spans) -> list[int]:
    """Mark the tokens of a prompt that the engine sampled, as the complements of their keys.

    Complements are fed one at a time, which repeats the computation that sampled them bit for bit. The last token of an
    answer is not marked: the answer ended when it was sampled, and it was fed with the tokens that followed.

    >>> complement_sampled([5, 6, 7, 8], [(1, 4)])
    [5, -7, -8, 8]
    """
    computed = list(keys)
    for first, last in sampled_spans:
        computed[first : last - 1] = [~key for key in computed[first : last - 1]]
    return computed


@dataclass(slots=True, eq=False)
class Request:
    """Generation or scoring in progress, created and advanced by `LocalEngine`."""

    ids: list[int]
    """Token ids of the prompt and of the tokens sampled after it; for a scoring, of the given tokens."""
    keys: list[int]
    """Identifier of each token, see `TokenSequence.keys`; the same list as `ids` if the prompt has no media."""
    computed_keys: list[int]
    """`keys`, with the complement (`~key`) of those that are fed one at a time: sampled and fed back. If recomputed,
    they are again fed one at a time and give the same bits; see `complement_sampled`."""
    episode: str
    """Name of the episode that the request belongs to."""
    result: asyncio.Future[Any]
    """Set to the `Generation` or `Scores` when the request ends, or to an error."""
    arrival: float
    """Time of the call, in seconds of `time.perf_counter`."""
    start: int
    """Index in `ids` of the first token whose log-prob is requested."""
    generation: GenerateRequest | None = None
    """Request of a generation; None for a scoring."""
    streamed: int = 0
    """Number of sampled tokens that `on_tokens` received."""
    row: KVSlot | None = None
    """KV slot of the request; None while it waits."""
    queue_seconds: float = 0.0
    """Time before the first forward pass, in seconds."""
    logprobs: list[float] = field(default_factory=list)
    model_logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    tops: list[Mapping[int, float]] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    measured: dict[str, list[float]] = field(default_factory=dict)
    finish: Literal["stop", "length", "abort"] | None = None
    """Finish reason; None while the request runs."""
    error: Exception | None = None
    """Error that ends the request; None: none occurred."""

    @property
    def sampling(self) -> Sampling | None:
        """Sampling parameters; None for a scoring."""
        return None if self.generation is None else self.generation.sampling

    @property
    def on_tokens(self) -> OnTokens | None:
        """Streaming callback of the generation; None: no tokens are streamed."""
        return None if self.generation is None else self.generation.on_tokens

    @property
    def tokens(self) -> list[int]:
        """Tokens sampled so far, including forced tokens."""
        return self.ids[self.start :]

    @property
    def allowed_tokens(self) -> np.ndarray | None:
        """[V] whether the constraint allows each token next; None: no constraint."""
        constraint = self.sampling.constraint if self.sampling is not None else None
        return None if constraint is None else constraint.allowed(self.tokens)

    @property
    def is_ended(self) -> bool:
        """Whether no more tokens are to be computed: the request finished, failed or was cancelled."""
        return self.finish is not None or self.error is not None or self.result.done()

    @property
    def num_uncomputed(self) -> int:
        """Number of tokens whose keys are not yet in the KV slot."""
        assert self.row is not None
        return len(self.ids) - len(self.row.keys)

    def next_piece(self) -> tuple[int, bool]:
        """Return (number of tokens to feed next, whether they are fed one at a time as sampled tokens).

        A prompt chunk extends up to the next sampled token.
        """
        assert self.row is not None
        computed = len(self.row.keys)
        if self.computed_keys[computed] < 0:
            return 1, True
        end = computed + 1
        while end < len(self.computed_keys) and self.computed_keys[end] >= 0:
            end += 1
        return end - computed, False

    @property
    def has_unstreamed(self) -> bool:
        """Whether `on_tokens` has not yet received all sampled tokens."""
        return self.on_tokens is not None and len(self.versions) > self.streamed and not self.is_ended

    def stream(self) -> None:
        """Call `on_tokens` with all tokens sampled so far; abort the generation if it returns True."""
        assert self.on_tokens is not None
        tokens = self.tokens
        self.streamed = len(tokens)
        if self.on_tokens(tokens) and self.finish is None:
            self.finish = "abort"

    def mark_for_recomputation(self) -> None:
        """Mark all tokens as prompt tokens, after a weight sync with `in_flight="recompute"`.

        Partial results of a scoring are discarded.
        """
        self.computed_keys = list(self.keys)
        if self.sampling is None:
            self.logprobs.clear()
            self.entropies.clear()

    def add_token(self, sampled: SampledToken, version: int, *, context_length: int) -> None:
        """Append a sampled token, and set the finish reason if it is the last.

        Args:
            sampled: Sampled token with its numbers.
            version: Policy version that sampled the token.
            context_length: Context length of the model, in tokens.
        """
        assert self.sampling is not None
        self.ids.append(sampled.token)
        if self.keys is not self.ids:
            self.keys.append(sampled.token)
        self.computed_keys.append(~sampled.token)
        self.logprobs.append(sampled.logprob)
        self.model_logprobs.append(sampled.model_logprob)
        self.entropies.append(sampled.entropy)
        self.versions.append(version)
        for name, value in sampled.measured.items():
            self.measured.setdefault(name, []).append(value)
        if self.sampling.top_logprobs:
            self.tops.append(sampled.top)
        if sampled.token in self.sampling.stop_ids:
            self.finish = "stop"
        elif len(self.logprobs) >= self.sampling.max_new_tokens or len(self.ids) >= context_length:
            self.finish = "length"

    def stop_at_strings(self, detokenize: Callable[[Sequence[int]], str]) -> None:
        """Set the finish reason `stop` if the last token completes a stop string."""
        assert self.sampling is not None
        # a character may take four tokens of one byte each, and the string may end inside the last token
        tail = max(4 * len(stop) + 4 for stop in self.sampling.stop_strings)
        text = detokenize(self.ids[max(self.start, len(self.ids) - tail) :])
        if any(stop in text for stop in self.sampling.stop_strings):
            self.finish = "stop"

    def build_result(self) -> Generation | Scores:
        """Return the `Generation`, or the `Scores` of a scoring, from the data collected so far."""
        if self.sampling is None:
            return Scores(tuple(self.logprobs), tuple(self.entropies))
        return Generation(
            tokens=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            entropies=tuple(self.entropies),
            versions=tuple(self.versions),
            finish=self.finish or "abort",
            queue_seconds=self.queue_seconds,
            model_logprobs=tuple(self.model_logprobs),
            tops=tuple(self.tops),
            measured={name: tuple(column) for name, column in self.measured.items()},
        )
