"""What is asked of an engine, and how far is it?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from whetstone.inference.protocol import Generation, Heard, Sampling, Scores, Spans
from whetstone.inference.rows import Row
from whetstone.inference.sampling import DrawnToken


def as_keys(ids: Sequence[int], drawn: Spans) -> list[int]:
    """How each token of a prompt is computed: those that were drawn and fed back one at a time as their complements.

    The last token of an answer is not among them: the answer was over when it was drawn, and it was fed with what came
    next.

    >>> as_keys([5, 6, 7, 8], [(1, 4)])
    [5, -7, -8, 8]
    """
    keys = list(ids)
    for first, last in drawn:
        keys[first : last - 1] = [~id for id in keys[first : last - 1]]
    return keys


@dataclass(slots=True, eq=False)
class Request:
    """A generation, or a scoring, under way."""

    ids: list[int]
    """The prompt and what was drawn behind it; for a scoring, the tokens given."""
    episode: str
    result: asyncio.Future[Any]
    asked: float
    sampling: Sampling | None = None
    """None: a scoring."""
    start: int = 0
    """Where what is asked for begins in `ids`."""
    keys: list[int] = field(default_factory=list)
    """`ids`, those that are fed one at a time as their complements (`~id`): what was drawn and fed back. Computed
    again, they are again fed one at a time, to the same bits; see `as_keys`."""
    heard: Heard | None = None
    told: int = 0
    """How many drawn tokens it was told of."""
    row: Row | None = None
    queue_seconds: float = 0.0
    logprobs: list[float] = field(default_factory=list)
    model_logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    tops: list[Mapping[int, float]] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: Literal["stop", "length", "abort"] | None = None
    error: Exception | None = None

    @property
    def tokens(self) -> list[int]:
        """What was drawn so far."""
        return self.ids[self.start :]

    @property
    def allowed(self) -> np.ndarray | None:
        """[V] what may be drawn next; None: anything."""
        constraint = self.sampling.constraint if self.sampling is not None else None
        return None if constraint is None else constraint.allowed(self.tokens)

    @property
    def ended(self) -> bool:
        """Whether nothing more is to be computed for it."""
        return self.finish is not None or self.error is not None or self.result.done()

    @property
    def missing(self) -> int:
        """How many of its tokens have no keys yet."""
        assert self.row is not None
        return len(self.ids) - len(self.row.ids)

    def next_piece(self) -> tuple[int, bool]:
        """(how many tokens are to be computed next, whether they were drawn)"""
        assert self.row is not None
        computed = len(self.row.ids)
        if self.keys[computed] < 0:
            return 1, True
        end = computed + 1
        while end < len(self.keys) and self.keys[end] >= 0:
            end += 1
        return end - computed, False

    @property
    def has_news(self) -> bool:
        """Whether somebody wants to hear of more than he was told of."""
        return self.heard is not None and len(self.versions) > self.told and not self.ended

    def tell(self) -> None:
        """Say what was drawn so far; it ends where that is enough."""
        assert self.heard is not None
        tokens = self.tokens
        self.told = len(tokens)
        if self.heard(tokens) and self.finish is None:
            self.finish = "abort"

    def compute_again(self) -> None:
        """What it has so far is as if it had been given."""
        self.keys = list(self.ids)
        if self.sampling is None:
            self.logprobs.clear()
            self.entropies.clear()

    def add(self, drawn: DrawnToken, version: int, *, context_length: int) -> None:
        """Append a drawn token and see whether it is the last."""
        assert self.sampling is not None
        self.ids.append(drawn.token)
        self.keys.append(~drawn.token)
        self.logprobs.append(drawn.logprob)
        self.model_logprobs.append(drawn.model_logprob)
        self.entropies.append(drawn.entropy)
        self.versions.append(version)
        if self.sampling.top_logprobs:
            self.tops.append(drawn.top)
        if drawn.token in self.sampling.stop_ids:
            self.finish = "stop"
        elif len(self.logprobs) >= self.sampling.max_new_tokens or len(self.ids) >= context_length:
            self.finish = "length"

    def stop_at_strings(self, detokenize: Callable[[Sequence[int]], str]) -> None:
        """End it where the last token completes a stop string."""
        assert self.sampling is not None
        # a character may take four tokens of one byte each, and the string may end inside the last token
        tail = max(4 * len(stop) + 4 for stop in self.sampling.stop_strings)
        text = detokenize(self.ids[max(self.start, len(self.ids) - tail) :])
        if any(stop in text for stop in self.sampling.stop_strings):
            self.finish = "stop"

    def answer(self) -> Generation | Scores:
        """What came of it."""
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
        )
