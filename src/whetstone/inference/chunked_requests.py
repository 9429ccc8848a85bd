"""Emulated streaming from a server that returns complete answers only: requests the answer in chunks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from whetstone.inference.protocol import GenerateRequest, Generation, OnTokens
from whetstone.inference.server_types import length_until_stop
from whetstone.tokens import TokenSequence

_PIECES = (1, 2, 4, 8, 16, 32)
"""Chunk sizes in tokens: the first token soon, later ones with few requests."""


async def generate_in_chunks(
    generate: Callable[[GenerateRequest], Awaitable[Generation]],
    request: GenerateRequest,
    on_tokens: OnTokens,
    *,
    detokenize: Callable[[Sequence[int]], str] | None,
) -> Generation:
    """Generate an answer in chunks of a few tokens, each as the continuation of those before.

    Args:
        generate: Sends one request.
        request: `max_new_tokens` fits the context; seeds have no effect.
        on_tokens: Called after every chunk but the last.
        detokenize: For stop strings, which can extend over two chunks.
    """
    sampling = request.sampling
    generation = Generation((), (), (), (), "length")
    sizes = iter(_PIECES)
    size = max(next(sizes), len(sampling.forced))
    while generation.finish == "length" and (left := sampling.max_new_tokens - len(generation.tokens)) > 0:
        chunk_sampling = replace(
            sampling, max_new_tokens=min(size, left), forced=() if generation.tokens else sampling.forced
        )
        prompt = request.prompt + TokenSequence(generation.tokens)
        generation += await generate(replace(request, prompt=prompt, sampling=chunk_sampling))
        length = length_until_stop(generation.tokens, sampling, detokenize)
        if length < len(generation.tokens):
            generation = replace(generation[:length], finish="stop")
        elif (
            generation.finish == "length"
            and len(generation.tokens) < sampling.max_new_tokens
            and on_tokens(generation.tokens)
        ):
            generation = replace(generation, finish="abort")
        size = next(sizes, size)
    return generation
