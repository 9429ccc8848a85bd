"""Requests to and responses from an inference server, independent of its protocol (see `vllm.py`, `sglang.py`).

Note:
    A server samples until a condition that it knows ends the generation. Conditions that it does not support (forced
    tokens, a stop string inside a token) are handled here, before and after the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from whetstone.inference.protocol import Sampling


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """One request to a server."""

    id: str
    tokens: tuple[int, ...]
    sampling: Sampling
    """Sampling parameters; `forced` is already in `tokens`, and `max_new_tokens` fits the context."""
    score_from: int | None = None
    """Index of the first of `tokens` whose log-prob is requested; None: none are."""
    cache: str = ""
    """Cache salt: the prefix cache is shared only with requests of the same salt, those under the same weights."""


@dataclass(frozen=True, slots=True)
class ServerResponse:
    """Response of a server to one request."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """[T] log-probs as returned by the server: processed or of the model, see `ServerEngine.of_the_draw`."""
    finish: Literal["stop", "length", "abort"]
    labels: tuple[str | None, ...]
    """[T] label of the weights that sampled each token; None if the server does not report it."""
    prompt_tokens: int
    cached_tokens: int
    prompt_logprobs: tuple[float, ...] = ()
    """Log-probs requested by `score_from`."""


def version_label(version: int) -> str:
    """Return the label of a policy version at a server."""
    return f"whetstone-{version}"


def token_labels(
    spans: Sequence[Mapping[str, Any]] | None, tokens: int, *, otherwise: str | None = None
) -> tuple[str | None, ...]:
    """Return the [T] labels of the weights that sampled each token, from consecutive spans.

    Args:
        spans: Label, start and end of each span; None: not reported.
        tokens: Number of tokens, T.
        otherwise: Label if there are no spans.

    >>> labels_of([{"version": "a", "start": 0, "end": 1}, {"version": "b", "start": 1, "end": 3}], 3)
    ('a', 'b', 'b')
    """
    if spans is None:
        return (otherwise,) * tokens
    labels = tuple(str(span["version"]) for span in spans for _ in range(span["start"], span["end"]))
    if len(labels) != tokens:
        raise ValueError(f"{tokens} tokens, but weight versions of {len(labels)}")
    return labels


def is_plain(sampling: Sampling) -> bool:
    """Return whether the sampling distribution is the model's."""
    cut = sampling.top_k or sampling.top_p < 1 or sampling.min_p > 0 or sampling.logit_bias
    return sampling.temperature == 1 and not cut


def apply_forced_tokens(sampling: Sampling, room: int) -> tuple[tuple[int, ...], Literal["stop", "length"] | None]:
    """Return the forced tokens that fit, and the finish reason if they end the generation (None: it continues)."""
    forced = sampling.forced[:room]
    for place, token in enumerate(forced):
        if token in sampling.stop_ids:
            return forced[: place + 1], "stop"
    return forced, "length" if forced and len(forced) == room else None


def length_until_stop(
    tokens: Sequence[int], sampling: Sampling, detokenize: Callable[[Sequence[int]], str] | None
) -> int:
    """Return the number of tokens up to the one that completes a stop string."""
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
