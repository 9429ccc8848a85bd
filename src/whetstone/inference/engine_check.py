"""Does an engine do what a run will rely on? It is tried before anything is learned from what it draws.

Checks: its log-probs are those of the policy's own forward pass; its tokenizer reads texts as the policy's does; the
beginning of a prompt is not computed twice; new weights arrive, and the old ones come back.

Easy to get wrong: a server of another model, of an older checkpoint or in another precision answers as fluently, and a
run on it learns from log-probs that are nobody's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import torch

from whetstone.compute_thread import run_in_compute_thread
from whetstone.contracts import fulfils
from whetstone.errors import InfrastructureError, WhetstoneError
from whetstone.inference.protocol import Engine, GenerateRequest, ReadsText, Sampling, Weights
from whetstone.policies import Policy
from whetstone.tokens import TokenSequence

TEXTS = (
    "Compute 12 + 345 and say the answer.",
    'call({"name": "search", "arguments": {"query": "naïve café, 東京"}})\n\n',
    "  def f(x):\n\treturn x ** 2  # ¼ of it\n",
)
"""What is read with both tokenizers: numbers, calls, white space, letters of others."""
_PROMPT_TOKENS, _DRAWN = 256, 24
_PERTURBED_BY = 0.05
_SEEN = 1e-3


@dataclass(frozen=True, slots=True)
class Finding:
    """What trying one thing came to."""

    name: str
    good: bool | None
    """None: it cannot be told with this engine."""
    said: str
    """In one line."""


async def check_engine(engine: Engine, policy: Policy, *, bound: float = 0.05) -> list[Finding]:
    """What was found, in the order it was tried.

    The engine's weights are changed for a moment, and put back.

    Args:
        bound: How far the engine's log-probs may lie from the policy's own, in nats and in the mean. Between bfloat16
            and float32 it is about 0.02; equal precision stays below 0.001.
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
            "log-probs", False, f"token {max(drawn.tokens)} was drawn, and the policy knows {known}: another model"
        )
    own = await worth(policy, (*prompt.ids, *drawn.tokens), len(prompt))
    mean = _mean_distance(drawn.logprobs, own)
    largest = max(abs(a - b) for a, b in zip(drawn.logprobs, own, strict=True))
    said = f"differ from the policy's own by {mean:.2g} nats in the mean of {len(own)} tokens, {largest:.2g} at most"
    if mean > bound:
        said += f"; more than {bound:g} is another model, other weights or a coarse precision"
    return Finding("log-probs", mean <= bound, said)


async def _tokenizer(engine: Engine, policy: Policy, bound: float) -> Finding:
    if not fulfils(engine, ReadsText):
        return Finding("tokenizer", None, "the engine reads no text")
    for text in TEXTS:
        theirs, ours = await engine.tokenize(text), tuple(_ids(policy, text))
        if theirs != ours:
            place = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), len(ours))
            said = f"reads {text[:30]!r} as {theirs[:8]}, the policy's as {ours[:8]}; they part at token {place}"
            return Finding("tokenizer", False, said)
    return Finding("tokenizer", True, f"reads {len(TEXTS)} texts as the policy's does")


async def _prefix_cache(engine: Engine, policy: Policy, bound: float) -> Finding:
    prompt = probe_prompt(policy)
    await engine.generate(GenerateRequest(prompt, Sampling(1), "check"))
    before = engine.statistics.cached_tokens
    await engine.generate(GenerateRequest(prompt + prompt[:1], Sampling(1), "check"))
    found = engine.statistics.cached_tokens - before
    said = f"{found} of {len(prompt)} tokens of a prompt were not computed again"
    if found < len(prompt) // 2:
        said += "; each turn would be computed from its beginning (a smaller block, or prefix caching, may be set)"
    return Finding("prefix cache", found >= len(prompt) // 2, said)


async def _weights(engine: Engine, policy: Policy, bound: float) -> Finding:
    prompt, version = probe_prompt(policy), engine.version
    # an engine of this process may draw from the policy's own tensors, into which weights are copied
    own = {name: parameter.detach().clone() for name, parameter in policy.model.named_parameters()}
    before = (await engine.score(prompt)).logprobs
    others = await run_in_compute_thread(_perturbed, policy)
    expected = await run_in_compute_thread(_forward, policy, prompt.ids, 1, weights=others)
    await engine.load_weights(others, version + 1)
    try:
        perturbed = (await engine.score(prompt)).logprobs
    finally:
        await engine.load_weights(own, version)
    again = (await engine.score(prompt)).logprobs
    moved, back, off = (_mean_distance(*pair) for pair in ((before, perturbed), (before, again), (expected, perturbed)))
    if moved < _SEEN:
        return Finding("weights", False, f"do not arrive: other weights move log-probs by {moved:.2g} nats")
    if off > max(_SEEN, min(bound, moved / 2)):
        said = (
            f"arrive in part: log-probs lie {off:.2g} nats from what other weights give, which move them by {moved:.2g}"
        )
        return Finding("weights", False, said)
    if back > _SEEN:
        return Finding("weights", False, f"do not come back: log-probs lie {back:.2g} nats from where they were")
    return Finding("weights", True, f"arrive: others move log-probs by {moved:.2g} nats, the old ones by {back:.2g}")


def _ids(policy: Policy, text: str) -> list[int]:
    return list(policy.tokenizer(text, add_special_tokens=False)["input_ids"])


def probe_prompt(policy: Policy) -> TokenSequence:
    """Return the texts, repeated, as many tokens as half a context holds."""
    most = min(_PROMPT_TOKENS, policy.context_length // 2)
    once = [id for text in TEXTS for id in _ids(policy, text)]
    return TokenSequence(islice(cycle(once), most))


async def worth(policy: Policy, ids: Sequence[int], start: int) -> list[float]:
    """[T − start] natural log-probs of the policy's own, of ids from `start` on."""
    return await run_in_compute_thread(_forward, policy, ids, start)


@torch.inference_mode()
def _forward(policy: Policy, ids: Sequence[int], start: int, *, weights: Weights | None = None) -> list[float]:
    device = next(policy.model.parameters()).device
    read: Any = torch.func.functional_call(policy.model, dict(weights or {}), (torch.tensor([ids], device=device),))
    logits = read.logits[0, start - 1 : -1].float()
    following = torch.tensor(ids[start:], device=device).unsqueeze(1)
    return [float(value) for value in torch.log_softmax(logits, -1).gather(1, following).squeeze(1)]


def _perturbed(policy: Policy) -> Weights:
    """The weights with a little noise on what is trained."""
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
