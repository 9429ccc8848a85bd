"""How is an answer heard of while it is drawn by a server that tells it at once? It is asked for in pieces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from whetstone.inference.exchange import until_stop
from whetstone.inference.protocol import Generation, Heard, Sampling

_PIECES = (1, 2, 4, 8, 16, 32)
"""Tokens at a time: the first soon, later ones cheaply."""

Draw = Callable[[Sequence[int], Sampling], Awaitable[Generation]]


async def in_pieces(
    draw: Draw,
    prompt: Sequence[int],
    sampling: Sampling,
    heard: Heard,
    *,
    detokenize: Callable[[Sequence[int]], str] | None,
) -> Generation:
    """The whole answer, asked for a few tokens at a time, each piece behind the one before.

    Args:
        sampling: `max_new_tokens` fits the context; seeds have no effect.
        heard: Told of every piece but the last.
        detokenize: For stop strings, which may begin in one piece and end in another.
    """
    whole = Generation((), (), (), (), "length")
    sizes = iter(_PIECES)
    size = max(next(sizes), len(sampling.forced))
    while whole.finish == "length" and (left := sampling.max_new_tokens - len(whole.tokens)) > 0:
        asked = replace(sampling, max_new_tokens=min(size, left), forced=() if whole.tokens else sampling.forced)
        whole = _joined(whole, await draw((*prompt, *whole.tokens), asked))
        kept = until_stop(whole.tokens, sampling, detokenize)
        if kept < len(whole.tokens):
            whole = replace(_cut(whole, kept), finish="stop")
        elif whole.finish == "length" and len(whole.tokens) < sampling.max_new_tokens and heard(whole.tokens):
            whole = replace(whole, finish="abort")
        size = next(sizes, size)
    return whole


def _joined(first: Generation, second: Generation) -> Generation:
    return replace(
        second,
        tokens=first.tokens + second.tokens,
        logprobs=first.logprobs + second.logprobs,
        entropies=first.entropies + second.entropies,
        versions=first.versions + second.versions,
        queue_seconds=first.queue_seconds or second.queue_seconds,
        model_logprobs=first.model_logprobs + second.model_logprobs,
    )


def _cut(whole: Generation, kept: int) -> Generation:
    return replace(
        whole,
        tokens=whole.tokens[:kept],
        logprobs=whole.logprobs[:kept],
        entropies=whole.entropies[:kept],
        versions=whole.versions[:kept],
        model_logprobs=whole.model_logprobs[:kept],
    )
