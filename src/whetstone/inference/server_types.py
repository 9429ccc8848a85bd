"""Requests to and responses from an inference server, independent of its protocol (see `vllm.py`, `sglang.py`).

Note:
    A server samples until a condition that it knows ends the generation. Conditions that it does not support (forced
    tokens, a stop string inside a token) are handled here, before and after the request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from whetstone.inference.protocol import Sampling


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """Request of `ServerEngine` to a server, before its conversion to the server's protocol."""

    id: str
    """Identifier of the request, by which it can be aborted."""
    tokens: tuple[int, ...]
    """Token ids of the prompt, including forced tokens."""
    sampling: Sampling
    """Sampling parameters; `forced` is already in `tokens`, and `max_new_tokens` fits the context."""
    score_from: int | None = None
    """Index in `tokens` of the first token whose log-prob is requested; None: no prompt log-probs."""
    cache: str = ""
    """Cache salt: the server shares its prefix cache only between requests with the same salt. It names the policy
    version."""


@dataclass(frozen=True, slots=True)
class ServerResponse:
    """Response of a server to one `ServerRequest`, independent of the server's protocol."""

    tokens: tuple[int, ...]
    """[T] ids of the sampled tokens."""
    logprobs: tuple[float, ...]
    """[T] log-probs as returned by the server: processed or of the model, see `ServerEngine.of_the_draw`."""
    finish: Literal["stop", "length", "abort"]
    """Finish reason; see `Generation.finish`."""
    labels: tuple[str | None, ...]
    """[T] label of the weights that sampled each token; None if the server does not report it."""
    prompt_tokens: int
    """Number of tokens in the prompt."""
    cached_tokens: int
    """Number of prompt tokens found in the server's prefix cache."""
    prompt_logprobs: tuple[float, ...] = ()
    """Log-probs of the prompt tokens from `ServerRequest.score_from` on; empty if none were requested."""


def version_label(version: int) -> str:
    """Return the label under which a server reports tokens of a policy version."""
    return f"whetstone-{version}"


def read_metrics(text: str) -> dict[str, float]:
    """Read metrics in the text format of Prometheus.

    Samples of one name with different labels are summed; for fractions (names with `usage`) it is the maximum.

    Args:
        text: Body of a response of `/metrics`.

    Returns:
        Value by name, without labels. Lines that do not parse are ignored.
    """
    samples: dict[str, float] = {}
    for line in text.splitlines():
        name, _, rest = line.partition("{") if "{" in line else line.partition(" ")
        try:
            value = float(rest.rpartition("}")[2].split()[0])
        except (ValueError, IndexError):
            continue
        if not name.startswith("#") and not math.isnan(value):
            known = samples.get(name, 0.0)
            samples[name] = max(known, value) if "usage" in name else known + value
    return samples


def token_labels(
    spans: Sequence[Mapping[str, Any]] | None, tokens: int, *, otherwise: str | None = None
) -> tuple[str | None, ...]:
    """Return the label of the weights that sampled each token, from consecutive spans.

    Args:
        spans: Mappings with `version`, `start` and `end`; None: the server reports no spans.
        tokens: Number of tokens, T.
        otherwise: Label of all tokens if there are no spans.

    Returns:
        [T] labels.

    Raises:
        ValueError: If the spans do not cover T tokens.

    >>> token_labels([{"version": "a", "start": 0, "end": 1}, {"version": "b", "start": 1, "end": 3}], 3)
    ('a', 'b', 'b')
    """
    if spans is None:
        return (otherwise,) * tokens
    labels = tuple(str(span["version"]) for span in spans for _ in range(span["start"], span["end"]))
    if len(labels) != tokens:
        raise ValueError(f"{tokens} tokens, but weight versions of {len(labels)}")
    return labels


def is_plain(sampling: Sampling) -> bool:
    """Return whether the sampling distribution is the model's: temperature 1, no truncation, no bias."""
    cut = sampling.top_k or sampling.top_p < 1 or sampling.min_p > 0 or sampling.logit_bias
    return sampling.temperature == 1 and not cut


def apply_forced_tokens(sampling: Sampling, room: int) -> tuple[tuple[int, ...], Literal["stop", "length"] | None]:
    """Return the forced tokens of an answer that fit, and its finish reason if they end it.

    Args:
        sampling: Sampling parameters.
        room: Maximum number of tokens of the answer.

    Returns:
        Forced tokens up to the first stop token; and `stop`, `length`, or None if the answer continues.
    """
    forced = sampling.forced[:room]
    for place, token in enumerate(forced):
        if token in sampling.stop_ids:
            return forced[: place + 1], "stop"
    return forced, "length" if forced and len(forced) == room else None


def length_until_stop(
    tokens: Sequence[int], sampling: Sampling, detokenize: Callable[[Sequence[int]], str] | None
) -> int:
    """Return the number of tokens up to the one that completes a stop string, or of all tokens.

    Args:
        tokens: Sampled tokens.
        sampling: Sampling parameters with the stop strings.
        detokenize: Decodes token ids to text; required if there are stop strings.
    """
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
