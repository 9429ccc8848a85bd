"""Is a replica what a run will rely on? It is asked to read and to draw before anything is learned from it.

Easy to get wrong: a server of another model answers as fluently. Only numbers tell: the ids of known texts, and what
the tokens it draws are worth to the policy itself.
"""

from __future__ import annotations

import asyncio
import math
import time

from whetstone.assembly.assembly import Assembly
from whetstone.errors import EngineError, InfrastructureError
from whetstone.inference.engine_check import TEXTS, probe_prompt, worth
from whetstone.inference.protocol import GenerateRequest, Sampling
from whetstone.scaling.protocol import Drawn, Gone, Replica, Restarting
from whetstone.tokens import TokenSequence

BOUND = 0.05
"""Nats in the mean; equal precision stays below 0.001, bfloat16 against float32 is about 0.02."""
_DRAWN = 16


async def check_replica(replica: Replica, assembly: Assembly, *, timeout_seconds: float) -> None:
    """See that a replica reads and draws as the policy does.

    Raises:
        EngineError: It does not; the message has the numbers.
    """
    policy = assembly.policy
    for text in TEXTS:
        theirs = await _tokenized(replica, text, timeout_seconds)
        ours = tuple(policy.tokenizer(text, add_special_tokens=False)["input_ids"])
        if theirs is not None and theirs != ours:
            place = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), len(ours))
            raise EngineError(
                f"scale: {replica.name} has another tokenizer: it reads {text[:24]!r} as {list(theirs[:6])}, the "
                f"policy's as {list(ours[:6])}; they part at token {place}"
            )
    prompt = probe_prompt(policy)
    answer = (await _first_drawn(replica, prompt, timeout_seconds)).generation
    if len(answer.logprobs) != len(answer.tokens) or not all(map(math.isfinite, answer.logprobs)):
        raise EngineError(
            f"scale: {replica.name} gives no log-probs of {len(answer.tokens)} tokens it drew, without which nothing "
            "can be learned"
        )
    known = int(policy.model.get_input_embeddings().num_embeddings)  # type: ignore[operator]
    if max(answer.tokens) >= known:
        raise EngineError(
            f"scale: {replica.name} drew token {max(answer.tokens)}, and the policy knows {known}: it is another model"
        )
    own = await worth(policy, (*prompt.ids, *answer.tokens), len(prompt))
    apart = sum(abs(a - b) for a, b in zip(answer.logprobs, own, strict=True)) / len(own)
    if not apart <= BOUND:
        raise EngineError(
            f"scale: {replica.name} has other weights: log-probs of {len(own)} tokens it drew lie {apart:.3g} nats "
            f"from the policy's own in the mean, more than {BOUND:g}"
        )


async def _tokenized(replica: Replica, text: str, timeout_seconds: float) -> tuple[int, ...] | None:
    began = time.perf_counter()
    while True:
        try:
            return await replica.tokenize(text)
        except (Gone, InfrastructureError) as failure:
            late = time.perf_counter() - began > timeout_seconds
            if late or not isinstance(failure, Restarting):
                raise EngineError(f"scale: {replica.name} cannot be asked: {failure}") from None
            await asyncio.sleep(0.1)


async def _first_drawn(replica: Replica, prompt: TokenSequence, timeout_seconds: float) -> Drawn:
    """What it draws, once it was given its weights."""
    began = time.perf_counter()
    while True:
        try:
            return await replica.generate(GenerateRequest(prompt, Sampling(_DRAWN), "probe"))
        except (Gone, InfrastructureError) as failure:
            if time.perf_counter() - began > timeout_seconds:
                raise EngineError(f"scale: {replica.name} draws nothing: {failure}") from None
            await asyncio.sleep(0.1)
