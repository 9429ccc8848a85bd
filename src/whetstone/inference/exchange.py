"""What is asked of a server, and what does it answer? Its words for it stand with its kind (`vllm.py`, `sglang.py`).

Easy to get wrong: a server draws until something it was told ends the answer. What it cannot be told (tokens that are
given, a stop string inside a token) is settled here, before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from whetstone.inference.protocol import Sampling


@dataclass(frozen=True, slots=True)
class Question:
    """One request to a server."""

    id: str
    tokens: tuple[int, ...]
    sampling: Sampling
    """`forced` is in `tokens` already; `max_new_tokens` fits the context."""
    score_from: int | None = None
    """Log-probs of `tokens` from here on are wanted, too."""
    cache: str = ""
    """Keys are shared with questions of the same name alone: those under the same weights."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """[T] as the server gives them: of the draw or of the model, see `ServedEngine.of_the_draw`."""
    finish: Literal["stop", "length", "abort"]
    labels: tuple[str | None, ...]
    """[T] the weights that drew each token; None where the server does not say."""
    prompt_tokens: int
    cached_tokens: int
    prompt_logprobs: tuple[float, ...] = ()
    """Those asked for by `score_from`."""


def label_of(version: int) -> str:
    """What weights are called at a server."""
    return f"whetstone-{version}"


def labels_of(
    spans: Sequence[Mapping[str, Any]] | None, tokens: int, *, otherwise: str | None = None
) -> tuple[str | None, ...]:
    """[T] which weights drew each token, from spans that follow each other; `otherwise` where there are none.

    >>> labels_of([{"version": "a", "start": 0, "end": 1}, {"version": "b", "start": 1, "end": 3}], 3)
    ('a', 'b', 'b')
    """
    if spans is None:
        return (otherwise,) * tokens
    labels = tuple(str(span["version"]) for span in spans for _ in range(span["start"], span["end"]))
    if len(labels) != tokens:
        raise ValueError(f"{tokens} tokens and weights of {len(labels)}")
    return labels


def is_plain(sampling: Sampling) -> bool:
    """Whether the sampling distribution is the model's."""
    cut = sampling.top_k or sampling.top_p < 1 or sampling.min_p > 0 or sampling.logit_bias
    return sampling.temperature == 1 and not cut


def given_by(sampling: Sampling, room: int) -> tuple[tuple[int, ...], Literal["stop", "length"] | None]:
    """(the forced tokens that come to be; how the answer ends with them, None: it goes on)"""
    given = sampling.forced[:room]
    for place, token in enumerate(given):
        if token in sampling.stop_ids:
            return given[: place + 1], "stop"
    return given, "length" if given and len(given) == room else None


def until_stop(tokens: Sequence[int], sampling: Sampling, detokenize: Callable[[Sequence[int]], str] | None) -> int:
    """How many tokens there are up to the one that completes a stop string."""
    if not sampling.stop_strings:
        return len(tokens)
    assert detokenize is not None
    if not any(stop in detokenize(tokens) for stop in sampling.stop_strings):
        return len(tokens)
    return next(
        count
        for count in range(1, len(tokens) + 1)
        if any(stop in detokenize(tokens[:count]) for stop in sampling.stop_strings)
    )
