"""Check of engine replicas before training: their tokenizer and log-probs must match the policy's.

Note:
    A server of another model responds as fluently. Only numbers reveal it: the token ids of known texts, and the
    policy's own log-probs of sampled tokens.
"""

from __future__ import annotations

import asyncio
import math
import time

from whetstone.assembly.assembly import RunComponents
from whetstone.errors import EngineError, InfrastructureError
from whetstone.inference.engine_check import TEXTS, policy_logprobs, probe_prompt
from whetstone.inference.protocol import GenerateRequest, Sampling
from whetstone.scaling.protocol import ActorRestarting, ActorUnavailable, GenerationResult, Replica
from whetstone.tokens import TokenSequence

BOUND = 0.05
"""Maximum mean difference of log-probs in nats; equal precision stays below 0.001, bfloat16 against float32 is about
0.02."""
_DRAWN = 16


async def check_replica(replica: Replica, assembly: RunComponents, *, timeout_seconds: float) -> None:
    """Check that a replica has the policy's tokenizer, vocabulary and weights.

    Compares the token ids of known texts, and the log-probs of sampled tokens with the policy's own.

    Args:
        replica: Replica that was started.
        assembly: Components of the run.
        timeout_seconds: Maximum number of seconds until the replica responds.

    Raises:
        EngineError: The replica differs or does not respond; the message has the numbers.
    """
    policy = assembly.policy
    for text in TEXTS:
        replica_ids = await _tokenized(replica, text, timeout_seconds)
        policy_ids = tuple(policy.tokenizer(text, add_special_tokens=False)["input_ids"])
        if replica_ids is not None and replica_ids != policy_ids:
            place = next(
                (i for i, (a, b) in enumerate(zip(replica_ids, policy_ids, strict=False)) if a != b), len(policy_ids)
            )
            raise EngineError(
                f"scale: {replica.name} has another tokenizer: it reads {text[:24]!r} as {list(replica_ids[:6])}, the "
                f"policy's as {list(policy_ids[:6])}; they differ from token {place} on"
            )
    prompt = probe_prompt(policy)
    generation = (await _first_drawn(replica, prompt, timeout_seconds)).generation
    if len(generation.logprobs) != len(generation.tokens) or not all(map(math.isfinite, generation.logprobs)):
        raise EngineError(
            f"scale: {replica.name} returned no log-probs of {len(generation.tokens)} sampled tokens; training "
            "requires them"
        )
    known = int(policy.model.get_input_embeddings().num_embeddings)  # type: ignore[operator]
    if max(generation.tokens) >= known:
        raise EngineError(
            f"scale: {replica.name} sampled token {max(generation.tokens)}, and the policy's vocabulary has "
            f"{known}: it is another model"
        )
    expected = await policy_logprobs(policy, (*prompt.ids, *generation.tokens), len(prompt))
    difference = sum(abs(a - b) for a, b in zip(generation.logprobs, expected, strict=True)) / len(expected)
    if not difference <= BOUND:
        raise EngineError(
            f"scale: {replica.name} has other weights: log-probs of {len(expected)} sampled tokens differ "
            f"by {difference:.3g} nats on average from the policy's own, more than {BOUND:g}"
        )


async def _tokenized(replica: Replica, text: str, timeout_seconds: float) -> tuple[int, ...] | None:
    began = time.perf_counter()
    while True:
        try:
            return await replica.tokenize(text)
        except (ActorUnavailable, InfrastructureError) as failure:
            late = time.perf_counter() - began > timeout_seconds
            if late or not isinstance(failure, ActorRestarting):
                raise EngineError(f"scale: {replica.name} is unreachable: {failure}") from None
            await asyncio.sleep(0.1)


async def _first_drawn(replica: Replica, prompt: TokenSequence, timeout_seconds: float) -> GenerationResult:
    """Sample a few tokens from a replica; retries until the replica has received its weights."""
    began = time.perf_counter()
    while True:
        try:
            return await replica.generate(GenerateRequest(prompt, Sampling(_DRAWN), "probe"))
        except (ActorUnavailable, InfrastructureError) as failure:
            if time.perf_counter() - began > timeout_seconds:
                raise EngineError(f"scale: {replica.name} samples nothing: {failure}") from None
            await asyncio.sleep(0.1)
