"""Checks of an engine before training: log-probs, tokenizer, prefix caching and weight sync.

The log-probs must be those of the policy's own forward pass, the tokenizer must read texts as the policy's does, a
repeated prompt must come from the prefix cache, and new weights must take effect and be reversible.

Note:
    A server with another model, an older checkpoint or another precision returns equally fluent text, and a run would
    train on wrong log-probs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import torch

from whetstone.capabilities import implements_protocol
from whetstone.compute_thread import run_in_compute_thread
from whetstone.errors import InfrastructureError, WhetstoneError
from whetstone.inference.protocol import Engine, GenerateRequest, HasTokenizer, Sampling, Weights
from whetstone.policies import Policy
from whetstone.tokens import TokenSequence

TEXTS = (
    "Compute 12 + 345 and say the answer.",
    'call({"name": "search", "arguments": {"query": "naïve café, 東京"}})\n\n',
    "  def f(x):\n\treturn x ** 2  # ¼ of it\n",
)
"""Texts on which the tokenizers are compared: numbers, calls, white space and non-Latin letters."""
_PROMPT_TOKENS, _DRAWN = 256, 24
_PERTURBED_BY = 0.05
_SEEN = 1e-3


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check of `check_engine`."""

    name: str
    """Name of the check: `log-probs`, `tokenizer`, `prefix cache` or `weights`."""
    passed: bool | None
    """Whether the check passed; None if the engine does not support the checked feature."""
    text: str
    """Result in one line, a predicate of `name`, such as "differ from the policy's own by 0.002 nats …"."""


async def check_engine(engine: Engine, policy: Policy, *, bound: float = 0.05) -> list[Finding]:
    """Check the log-probs, tokenizer, prefix cache and weight sync of an engine.

    The check of the weight sync loads perturbed weights and then restores the policy's. An error of the engine fails
    the check in which it occurs.

    Args:
        engine: Engine to check; no other requests may run.
        policy: Policy whose weights the engine should have.
        bound: Maximum mean difference between log-probs of the engine and of the policy, in nats per token. Between
            bfloat16 and float32 it is about 0.02; equal precision stays below 0.001.

    Returns:
        One result per check, in the order of the checks.
    """
    tried: list[tuple[str, Callable[[Engine, Policy, float], Awaitable[Finding]]]] = [
        ("log-probs", _logprobs),
        ("tokenizer", _tokenizer),
        ("prefix cache", _prefix_cache),
        ("weights", _weights),
    ]
    findings = []
    for name, attempt in tried:
        try:
            findings.append(await attempt(engine, policy, bound))
        except (InfrastructureError, WhetstoneError) as error:
            findings.append(Finding(name, False, str(error)))
    return findings


async def _logprobs(engine: Engine, policy: Policy, bound: float) -> Finding:
    prompt = probe_prompt(policy)
    drawn = await engine.generate(GenerateRequest(prompt, Sampling(_DRAWN), "check"))
    known = int(policy.model.get_input_embeddings().num_embeddings)  # type: ignore[operator]
    if max(drawn.tokens) >= known:
        return Finding(
            "log-probs", False, f"token {max(drawn.tokens)} was sampled, but the policy has {known}: another model"
        )
    own = await policy_logprobs(policy, (*prompt.ids, *drawn.tokens), len(prompt))
    mean = _mean_distance(drawn.logprobs, own)
    largest = max(abs(a - b) for a, b in zip(drawn.logprobs, own, strict=True))
    text = f"differ from the policy's own by {mean:.2g} nats on average over {len(own)} tokens, {largest:.2g} at most"
    if mean > bound:
        text += f"; above {bound:g}: another model, other weights or a lower precision"
    return Finding("log-probs", mean <= bound, text)


async def _tokenizer(engine: Engine, policy: Policy, bound: float) -> Finding:
    if not implements_protocol(engine, HasTokenizer):
        return Finding("tokenizer", None, "the engine has no tokenizer")
    for text in TEXTS:
        engine_ids, policy_ids = await engine.tokenize(text), tuple(_ids(policy, text))
        if engine_ids != policy_ids:
            place = next(
                (i for i, (a, b) in enumerate(zip(engine_ids, policy_ids, strict=False)) if a != b), len(policy_ids)
            )
            description = (
                f"reads {text[:30]!r} as {engine_ids[:8]}, the policy's as {policy_ids[:8]}; "
                f"they differ at token {place}"
            )
            return Finding("tokenizer", False, description)
    return Finding("tokenizer", True, f"reads {len(TEXTS)} texts as the policy's does")


async def _prefix_cache(engine: Engine, policy: Policy, bound: float) -> Finding:
    prompt = probe_prompt(policy)
    await engine.generate(GenerateRequest(prompt, Sampling(1), "check"))
    before = engine.statistics.cached_tokens
    await engine.generate(GenerateRequest(prompt + prompt[:1], Sampling(1), "check"))
    cached = engine.statistics.cached_tokens - before
    text = f"{cached} of {len(prompt)} tokens of a repeated prompt were cached"
    if cached < len(prompt) // 2:
        text += "; each turn would be recomputed from the start; enable prefix caching, or set a smaller block size"
    return Finding("prefix cache", cached >= len(prompt) // 2, text)


async def _weights(engine: Engine, policy: Policy, bound: float) -> Finding:
    prompt, version = probe_prompt(policy), engine.version
    # an engine in this process may sample from the policy's own tensors, into which weights are copied
    own = {name: parameter.detach().clone() for name, parameter in policy.model.named_parameters()}
    before = (await engine.score(prompt)).logprobs
    others = await run_in_compute_thread(_perturbed, policy)
    expected = await run_in_compute_thread(_forward, policy, prompt.ids, 1, weights=others)
    await engine.load_weights(others, version + 1)
    try:
        perturbed = (await engine.score(prompt)).logprobs
    finally:
        await engine.load_weights(own, version)
    restored = (await engine.score(prompt)).logprobs
    moved, back, off = (
        _mean_distance(*pair) for pair in ((before, perturbed), (before, restored), (expected, perturbed))
    )
    if moved < _SEEN:
        return Finding("weights", False, f"have no effect: other weights change log-probs by {moved:.2g} nats")
    if off > max(_SEEN, min(bound, moved / 2)):
        text = (
            f"are loaded in part: log-probs differ by {off:.2g} nats from those of the new weights, which change them "
            f"by {moved:.2g}"
        )
        return Finding("weights", False, text)
    if back > _SEEN:
        return Finding("weights", False, f"are not restored: log-probs differ by {back:.2g} nats from those before")
    return Finding(
        "weights", True, f"are loaded: new ones change log-probs by {moved:.2g} nats, the old ones by {back:.2g}"
    )


def _ids(policy: Policy, text: str) -> list[int]:
    return list(policy.tokenizer(text, add_special_tokens=False)["input_ids"])


def probe_prompt(policy: Policy) -> TokenSequence:
    """Return the prompt of the checks: `TEXTS`, repeated up to 256 tokens or half of the context."""
    max_tokens = min(_PROMPT_TOKENS, policy.context_length // 2)
    once = [id for text in TEXTS for id in _ids(policy, text)]
    return TokenSequence(islice(cycle(once), max_tokens))


async def policy_logprobs(policy: Policy, ids: Sequence[int], start: int) -> list[float]:
    """Compute log-probs of tokens by the policy's own forward pass.

    Args:
        policy: Policy to compare with.
        ids: [T] token ids.
        start: Index of the first token whose log-prob is returned, at least 1.

    Returns:
        [T − start] natural log-probs at temperature 1.
    """
    return await run_in_compute_thread(_forward, policy, ids, start)


@torch.inference_mode()
def _forward(policy: Policy, ids: Sequence[int], start: int, *, weights: Weights | None = None) -> list[float]:
    device = next(policy.model.parameters()).device
    read: Any = torch.func.functional_call(policy.model, dict(weights or {}), (torch.tensor([ids], device=device),))
    logits = read.logits[0, start - 1 : -1].float()
    following = torch.tensor(ids[start:], device=device).unsqueeze(1)
    return [float(value) for value in torch.log_softmax(logits, -1).gather(1, following).squeeze(1)]


def _perturbed(policy: Policy) -> Weights:
    """Return the policy's weights with Gaussian noise added to the trainable ones.

    The noise is 5 % of each tensor's standard deviation.
    """
    numbers = torch.Generator().manual_seed(0)
    weights: dict[str, torch.Tensor] = {}
    for name, parameter in policy.model.named_parameters():
        own = parameter.detach()
        if parameter.requires_grad and own.is_floating_point():
            noise = torch.randn(own.shape, generator=numbers).to(own)
            own = own + _PERTURBED_BY * (own.float().std().to(own) if own.numel() > 1 else 1.0) * noise
        weights[name] = own
    return weights


def _mean_distance(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / max(1, len(one))
