"""Checks of an engine: log-probs, tokenizer, prefix caching and weight sync.

The log-probs must be those of the policy's own forward pass, the tokenizer must read texts as the policy's does, a
repeated prompt must come from the prefix cache, and new weights must take effect and be reversible. A run repeats the
check of the weight sync while it trains (`require_weight_sync`).

Note:
    A server with another model, an older checkpoint or another precision returns equally fluent text, and a run would
    train on wrong log-probs.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count, cycle, islice
from typing import Any

import torch

from whetstone.capabilities import implements_protocol
from whetstone.compute_thread import run_in_compute_thread
from whetstone.errors import InfrastructureError, WeightSyncError, WhetstoneError
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
_PERTURBED_BY, _UNIFORM_STD = 0.05, 0.02
"""Noise of perturbed weights as a fraction of a tensor's standard deviation, and the deviation of constant tensors."""
_MOVED, _DOUBLINGS = 0.5, 8
"""Mean change of log-probs, in nats, up to which the noise is doubled, and how often at most."""
_SEEN, _NOISE_FACTOR = 1e-3, 4.0
"""Differences that rounding explains: in nats, and as a multiple of the difference before the change."""
_LATE_SECONDS, _FIRST_PAUSE = 10.0, 0.05
"""Time in seconds in which weights that arrive late are detected, and the first of the doubled pauses."""
_ATTEMPTS = 3
"""Number of attempts of a check whose requests fail."""
_VERSIONS = count(10**9)
"""Policy versions of perturbed weights: no update has them, so no cached prefix of theirs is ever used."""


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
    return await check_weight_sync(engine, policy, bound=bound)


async def check_weight_sync(
    engine: Engine, policy: Policy, *, bound: float = 0.05, late_seconds: float = _LATE_SECONDS
) -> Finding:
    """Check that weights sent to an engine are those that it samples from.

    Perturbed weights are loaded and then the policy's again. After each of both, the log-probs of the engine must be
    those of the policy's own forward pass with the same weights: for a new prompt, and for one that is in the prefix
    cache. Differences count if they exceed four times those before the change, which are rounding errors.

    Args:
        engine: Engine to check; no other requests may run.
        policy: Policy whose weights the engine should have.
        bound: Maximum mean difference before the change, in nats per token; see `check_engine`.
        late_seconds: Time in seconds after which weights that were not seen count as lost, not as late.

    Returns:
        The result; the text has the cause of a failure. The engine has the policy's weights afterwards.

    Raises:
        InfrastructureError: If the engine does not respond.
    """
    # an engine in this process may sample from the policy's own tensors, into which weights are copied
    own = {
        name: parameter.detach().clone() if parameter.requires_grad else parameter.detach()
        for name, parameter in policy.model.named_parameters()
    }
    version, check = engine.version, _SyncCheck(engine, policy, probe_prompt(policy), late_seconds)
    before = (await check.measure_difference(check.vary_prompt(), own)).off
    if before > bound:
        text = f"are not those of the policy: log-probs differ by {before:.2g} nats before any change; above {bound:g}"
        return Finding("weights", False, text)
    check.noise = max(before, await check.compare_sample(check.prompt, own))  # the prompt is now in the prefix cache
    others, check.moved = await run_in_compute_thread(
        _perturb_weights, policy, own, check.prompt, max(_MOVED, _NOISE_FACTOR * check.noise)
    )
    await engine.load_weights(others, next(_VERSIONS))
    try:
        problem = await check.find_problem(others, own)
    finally:
        await engine.load_weights(own, version)
    if problem:
        return Finding("weights", False, problem)
    problem = await check.find_problem(own, others)
    if problem:
        return Finding("weights", False, f"are not restored: those sent last {problem}")
    return Finding(
        "weights",
        True,
        f"are loaded: new ones change log-probs by {check.moved:.2g} nats, the old ones restore them to "
        f"{check.off:.2g}",
    )


async def require_weight_sync(engine: Engine, policy: Policy, *, bound: float, name: str) -> str:
    """Check the weight sync of an engine in a run; raise an error if the engine samples from other weights.

    The check is repeated if the engine does not respond.

    Args:
        engine: Engine to check; no other requests may run.
        policy: Policy whose weights the engine should have.
        bound: See `check_weight_sync`.
        name: Name of the engine, for the message.

    Returns:
        The result in one line.

    Raises:
        WeightSyncError: If the check fails; the message has the cause.
        InfrastructureError: If the engine does not respond, at several attempts.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            finding = await check_weight_sync(engine, policy, bound=bound)
            break
        except InfrastructureError:
            if attempt == _ATTEMPTS:
                raise
    if not finding.passed:
        raise WeightSyncError(
            f"engine: {name} does not sample from the trained policy: weights {finding.text}; restart the server, and "
            "check that no other run uses it"
        )
    return f"engine: weights {finding.text}"


@dataclass(frozen=True, slots=True)
class _Difference:
    """Mean differences of log-probs from those of two sets of weights, in nats per token."""

    off: float
    """Difference from the weights that the engine should have."""
    from_others: float
    """Difference from the weights that it had before."""


@dataclass(slots=True)
class _SyncCheck:
    """State of one check of the weight sync."""

    engine: Engine
    policy: Policy
    prompt: TokenSequence
    """Prompt whose keys stay in the prefix cache during the check."""
    late_seconds: float
    """See `check_weight_sync`."""
    moved: float = 0.0
    """Difference of the two sets of weights, in nats per token."""
    noise: float = 0.0
    """Differences between engine and policy under equal weights, in nats per token."""
    off: float = 0.0
    """Last difference that was measured after a weight sync, in nats per token."""
    number: int = 0
    """Number of prompts so far."""

    @property
    def bound(self) -> float:
        """Largest difference that is explained by rounding, in nats per token."""
        return max(_SEEN, min(_NOISE_FACTOR * self.noise, self.moved / 2))

    def vary_prompt(self) -> TokenSequence:
        """Return a prompt that no request had before, and that shares no prefix with another one."""
        self.number += 1
        first = random.Random(f"{id(self)} {self.number}").choices(self.prompt.ids, k=8)
        return TokenSequence([*first, *self.prompt.ids[8:]])

    async def measure_difference(
        self, prompt: TokenSequence, weights: Weights, others: Weights | None = None
    ) -> _Difference:
        """Score a prompt with the engine, and compare with one or two sets of weights."""
        if self.engine.capabilities.scores:
            ids, start = prompt.ids, 1
            logprobs = (await self.engine.score(prompt)).logprobs
        else:
            drawn = await self.engine.generate(GenerateRequest(prompt, Sampling(_DRAWN), "check"))
            ids, start, logprobs = (*prompt.ids, *drawn.tokens), len(prompt), drawn.logprobs
        distances = [
            _mean_distance(logprobs, await run_in_compute_thread(_forward, self.policy, ids, start, weights=each))
            for each in (weights, *([others] if others is not None else []))
        ]
        return _Difference(distances[0], distances[-1])

    async def compare_sample(self, prompt: TokenSequence, weights: Weights) -> float:
        """Sample a continuation of a prompt, and return the difference of its log-probs from those of the weights."""
        drawn = await self.engine.generate(GenerateRequest(prompt, Sampling(_DRAWN, seed=self.number), "check"))
        own = await run_in_compute_thread(
            _forward, self.policy, (*prompt.ids, *drawn.tokens), len(prompt), weights=weights
        )
        return _mean_distance(drawn.logprobs, own)

    async def find_problem(self, weights: Weights, before: Weights) -> str:
        """Return the fault of the weight sync; empty if the engine has the weights that were loaded.

        Args:
            weights: Weights that were loaded last.
            before: Weights that the engine had before.
        """
        seen = await self.measure_difference(self.vary_prompt(), weights, before)
        self.off = seen.off
        if seen.off > self.bound:
            return await self._describe_problem(seen, weights, before)
        fresh = await self.compare_sample(self.vary_prompt(), weights)
        repeated = await self.compare_sample(self.prompt, weights)
        if repeated > max(_SEEN, _NOISE_FACTOR * max(fresh, self.noise)):
            return (
                "are mixed with those before: a cached prompt has keys of the old weights (log-probs differ by "
                f"{repeated:.2g} nats, without the prefix cache by {fresh:.2g}); the server must drop or separate its "
                "prefix cache when weights change"
            )
        return ""

    async def _describe_problem(self, seen: _Difference, weights: Weights, before: Weights) -> str:
        """Ask again for a while, to distinguish weights that arrive late from those that never do."""
        began, pause = time.perf_counter(), _FIRST_PAUSE
        while time.perf_counter() - began < self.late_seconds:
            await asyncio.sleep(pause)
            pause = min(1.0, 2 * pause)
            later = await self.measure_difference(self.vary_prompt(), weights, before)
            if later.off <= self.bound:
                return (
                    f"are applied late: the server confirmed them {time.perf_counter() - began:.2g} s before it "
                    "sampled from them"
                )
        if seen.from_others <= min(self.bound, seen.off):
            return f"have no effect: log-probs are still those of the weights before, {seen.off:.2g} nats away"
        return (
            f"are loaded in part: log-probs differ by {seen.off:.2g} nats from those of the new weights and by "
            f"{seen.from_others:.2g} from those of the old ones"
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


def _perturb_weights(policy: Policy, own: Weights, prompt: TokenSequence, change: float) -> tuple[Weights, float]:
    """Return weights with Gaussian noise added to the trainable ones, and the mean change of log-probs in nats.

    The noise is 5 % of each tensor's standard deviation; it is doubled until log-probs change by `change` nats.
    """
    before, scale = _forward(policy, prompt.ids, 1, weights=own), _PERTURBED_BY
    while True:
        weights = _add_noise(policy, own, scale)
        moved = _mean_distance(before, _forward(policy, prompt.ids, 1, weights=weights))
        if moved >= change or scale >= _PERTURBED_BY * 2**_DOUBLINGS:
            return weights, moved
        scale *= 2


def _add_noise(policy: Policy, own: Weights, scale: float) -> Weights:
    numbers = torch.Generator().manual_seed(0)
    weights: dict[str, torch.Tensor] = {}
    for name, parameter in policy.model.named_parameters():
        tensor = own[name]
        if parameter.requires_grad and tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=numbers).to(tensor)
            deviation = float(tensor.float().std()) if tensor.numel() > 1 else 1.0
            tensor = tensor + scale * (deviation or _UNIFORM_STD) * noise
        weights[name] = tensor
    return weights


def _mean_distance(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / max(1, len(one))
