"""Streams from a server that returns whole answers only: requests the answer in pieces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from whetstone.inference.exchange import until_stop
from whetstone.inference.protocol import GenerateRequest, Generation, OnTokens
from whetstone.tokens import TokenSequence

_PIECES = (1, 2, 4, 8, 16, 32)
"""Tokens at a time: the first soon, later ones cheaply."""


async def generate_in_pieces(
    generate: Callable[[GenerateRequest], Awaitable[Generation]],
    request: GenerateRequest,
    on_tokens: OnTokens,
    *,
    detokenize: Callable[[Sequence[int]], str] | None,
) -> Generation:
    """Generate an answer a few tokens at a time, each piece as the continuation of those before.

    Args:
        request: `max_new_tokens` fits the context; seeds have no effect.
        on_tokens: Called after every piece but the last.
        detokenize: For stop strings, which can extend over two pieces.
    """
    sampling = request.sampling
    whole = Generation((), (), (), (), "length")
    sizes = iter(_PIECES)
    size = max(next(sizes), len(sampling.forced))
    while whole.finish == "length" and (left := sampling.max_new_tokens - len(whole.tokens)) > 0:
        asked = replace(sampling, max_new_tokens=min(size, left), forced=() if whole.tokens else sampling.forced)
        prompt = request.prompt + TokenSequence(whole.tokens)
        whole += await generate(replace(request, prompt=prompt, sampling=asked))
        kept = until_stop(whole.tokens, sampling, detokenize)
        if kept < len(whole.tokens):
            whole = replace(whole[:kept], finish="stop")
        elif whole.finish == "length" and len(whole.tokens) < sampling.max_new_tokens and on_tokens(whole.tokens):
            whole = replace(whole, finish="abort")
        size = next(sizes, size)
    return whole
