"""Token sampling from logits, with random numbers that depend only on the request's seed and the token's position.

Note:
    A shared random stream would make the tokens of a request depend on the batch and on the order of arrival. Here the
    random number for position `t` is a hash of (seed, t), so it depends on neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from whetstone.inference.protocol import Sampling

_BLOCK = 1024
_SLAB = 2**18
"""Maximum number of logits that are processed together on a CPU, so that they fit into a core's cache."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One sampled token per sequence of a batch, as tensors; returned by `sample_tokens`."""

    tokens: Tensor
    """[B] token ids."""
    logprobs: Tensor
    """[B] log-probs under the sampling distribution."""
    model_logprobs: Tensor
    """[B] log-probs under the model's distribution, at temperature 1 without bias or truncation."""
    entropies: Tensor
    """[B] entropy in nats of the sampling distribution; of the model's at temperature 0."""
    tops: Sequence[Mapping[int, float]]
    """[B] most likely tokens with their log-probs under the model's distribution; empty if not requested."""
    measured: Mapping[str, Tensor] = field(default_factory=dict)
    """By name, [B] further numbers per token; see `Tokens.measured`."""

    def iterate_tokens(self) -> Iterator[SampledToken]:
        """Yield one `SampledToken` per sequence.

        All tensors are transferred at once, since every transfer from a device synchronizes.
        """
        columns = (self.tokens, self.logprobs, self.model_logprobs, self.entropies, *self.measured.values())
        read = torch.stack([column.double() for column in columns]).tolist()
        for row, top in zip(zip(*read, strict=True), self.tops, strict=True):
            token, logprob, model_logprob, entropy, *further = row
            measured = dict(zip(self.measured, further, strict=True))
            yield SampledToken(int(token), logprob, model_logprob, entropy, top, measured)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One sampled token with its numbers, as Python numbers; see `SampledTokens` for their meaning."""

    token: int
    logprob: float
    model_logprob: float
    entropy: float
    top: Mapping[int, float]
    measured: Mapping[str, float]


def sample_tokens(
    logits: Tensor,
    samplings: Sequence[Sampling],
    places: Sequence[int],
    allowed: Sequence[np.ndarray | None] = (),
) -> SampledTokens:
    """Sample one token per sequence by inverting the cumulative distribution.

    The result for a sequence depends only on its logits, sampling parameters and position. On a CPU, large vocabularies
    are processed a few sequences at a time, so that their logits stay in the cache.

    Args:
        logits: [B, V] logits.
        samplings: [B] sampling parameters. At temperature 0 the most likely token is taken, the first one of ties.
        places: [B] index of the next token in its answer, from 0.
        allowed: [B] tokens that the constraint of each sequence allows, None: all; empty if no sequence has a
            constraint.
    """
    size = max(1, _SLAB // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    if len(logits) <= size:
        return _sample(logits, samplings, places, allowed)
    slabs = [slice(start, start + size) for start in range(0, len(logits), size)]
    return _concatenate([_sample(logits[at], samplings[at], places[at], allowed[at]) for at in slabs])


def _concatenate(parts: Sequence[SampledTokens]) -> SampledTokens:
    return SampledTokens(
        tokens=torch.cat([each.tokens for each in parts]),
        logprobs=torch.cat([each.logprobs for each in parts]),
        model_logprobs=torch.cat([each.model_logprobs for each in parts]),
        entropies=torch.cat([each.entropies for each in parts]),
        tops=[top for each in parts for top in each.tops],
        measured={name: torch.cat([each.measured[name] for each in parts]) for name in parts[0].measured},
    )


def _sample(
    logits: Tensor, samplings: Sequence[Sampling], places: Sequence[int], allowed: Sequence[np.ndarray | None]
) -> SampledTokens:
    """Sample one token for all sequences in one batch; see `sample_tokens`."""
    logits = logits.float()
    model = torch.log_softmax(logits, dim=-1)
    masked = any(mask is not None for mask in allowed)
    if not masked and all(s.temperature == 1 and _is_plain(s) for s in samplings):
        greedy, distribution = None, model
    else:
        temperatures = torch.tensor([s.temperature for s in samplings], device=logits.device)
        greedy = temperatures == 0
        scaled = _apply_masks(logits, allowed) if masked else logits
        scaled = scaled if not any(s.logit_bias for s in samplings) else _apply_bias(scaled, samplings)
        scaled = scaled / torch.where(greedy, 1.0, temperatures).unsqueeze(1)
        cut = [i for i, s in enumerate(samplings) if s.top_k or s.top_p < 1 or s.min_p > 0]
        if cut:  # row by row in the batch's memory: sorting is slow, and few requests need it
            scaled = scaled.clone()
            scaled[cut] = _truncate(scaled[cut], [samplings[i] for i in cut])
        distribution = torch.log_softmax(scaled, dim=-1)
    probabilities = distribution.exp()
    entropies = -(probabilities * distribution.clamp_min(-1e4)).sum(-1)
    seeds = np.array([s.seed for s in samplings], dtype=np.uint64)
    numbers = hash_to_uniforms(seeds, np.array(places, dtype=np.uint64)).to(logits.device)
    tokens = _invert_cdf(probabilities, numbers)
    likeliest = distribution.argmax(-1) if greedy is not None else tokens
    if greedy is not None:
        tokens = torch.where(greedy, likeliest, tokens)
    if any(s.forced for s in samplings):
        forced_ids = [
            s.forced[place] if place < len(s.forced) else -1 for s, place in zip(samplings, places, strict=True)
        ]
        forced = torch.tensor(forced_ids, device=logits.device)
        tokens = torch.where(forced >= 0, forced, tokens)
    chosen = distribution.gather(1, tokens.unsqueeze(1)).squeeze(1)
    if greedy is not None:  # all probability is on the most likely token; another one must be forced
        chosen = torch.where(greedy, torch.where(tokens == likeliest, 0.0, -torch.inf), chosen)
    return SampledTokens(
        tokens, chosen, model.gather(1, tokens.unsqueeze(1)).squeeze(1), entropies, _top_logprobs(model, samplings)
    )


def _invert_cdf(probabilities: Tensor, numbers: Tensor) -> Tensor:
    """Return [B] tokens at which the cumulative probability exceeds a fraction of the total.

    First the block of tokens is found, then the token in it: a cumulative sum over all tokens is slow.

    Args:
        probabilities: [B, V] probabilities, which need not sum to exactly 1.
        numbers: [B] fractions in [0, 1).
    """
    size = min(_BLOCK, probabilities.shape[1])
    padded = torch.nn.functional.pad(probabilities, (0, -probabilities.shape[1] % size))
    blocks = padded.view(len(padded), -1, size)
    sums = blocks.sum(-1, dtype=torch.float64)
    ends = sums.cumsum(-1)
    thresholds = (numbers * ends[:, -1]).unsqueeze(1)
    block = torch.searchsorted(ends, thresholds, right=True).clamp_max(sums.shape[1] - 1)
    within = blocks.gather(1, block.unsqueeze(2).expand(-1, 1, size)).squeeze(1).double().cumsum(-1)
    before = ends.roll(1, 1).gather(1, block).where(block > 0, 0.0)
    # strictly above the threshold: a token of probability 0 is never sampled; and below the last sum of the block,
    # which is rounded differently than its sum above
    max_below = torch.nextafter(within[:, -1:], torch.zeros_like(before))
    at = torch.searchsorted(within, torch.minimum(thresholds - before, max_below).clamp_min(0), right=True)
    return (block * size + at).squeeze(1).clamp_max(probabilities.shape[1] - 1)


def hash_to_uniforms(seeds: np.ndarray, places: np.ndarray) -> Tensor:
    """Hash seeds and positions to uniform random numbers in [0, 1), by 32 bits of SplitMix64.

    32 bits leave a gap below 1, so a threshold never rounds up to the total.

    Args:
        seeds: [B] seeds of the requests.
        places: [B] positions of the tokens.

    Returns:
        [B] float64 numbers.

    Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", finalizer of figure 16.
    """
    with np.errstate(over="ignore"):
        state = seeds.astype(np.uint64) + (places.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return torch.from_numpy((state >> np.uint64(32)).astype(np.float64) / 2.0**32)


def _is_plain(sampling: Sampling) -> bool:
    return not (sampling.top_k or sampling.top_p < 1 or sampling.min_p > 0 or sampling.logit_bias)


def _apply_masks(logits: Tensor, allowed: Sequence[np.ndarray | None]) -> Tensor:
    masked = logits.clone()
    for row, mask in enumerate(allowed):
        if mask is not None:
            known = torch.zeros(logits.shape[1], dtype=torch.bool)
            known[: len(mask)] = torch.from_numpy(mask[: logits.shape[1]])
            masked[row, ~known.to(logits.device)] = -torch.inf
    return masked


def _top_logprobs(model: Tensor, samplings: Sequence[Sampling]) -> list[Mapping[int, float]]:
    tops: list[Mapping[int, float]] = [{}] * len(samplings)
    for row, sampling in enumerate(samplings):
        if sampling.top_logprobs:
            values, ids = model[row].topk(min(sampling.top_logprobs, model.shape[1]))
            tops[row] = dict(zip(ids.tolist(), values.tolist(), strict=True))
    return tops


def _apply_bias(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    biased = logits.clone()
    for row, sampling in enumerate(samplings):
        if sampling.logit_bias:
            ids = torch.tensor(list(sampling.logit_bias), device=logits.device)
            biased[row, ids] += torch.tensor(list(sampling.logit_bias.values()), device=logits.device)
    return biased


def _truncate(scaled: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Apply top-k, then top-p, then min-p to [B, V] scaled logits.

    Excluded tokens get −inf. The most likely token always stays.
    """
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    ks = torch.tensor([s.top_k or scaled.shape[1] for s in samplings], device=scaled.device).clamp_max(scaled.shape[1])
    min_kept = ordered.gather(1, (ks - 1).unsqueeze(1))
    ordered = ordered.masked_fill(ordered < min_kept, -torch.inf)
    probabilities = ordered.softmax(-1)
    # tokens stay while the sum before them is below top_p
    before = probabilities.cumsum(-1) - probabilities
    top_p = torch.tensor([s.top_p for s in samplings], device=scaled.device).unsqueeze(1)
    ordered = ordered.masked_fill((before >= top_p) & (top_p < 1), -torch.inf)
    # the ratio to the most likely token is the same before and after normalization
    min_p = torch.tensor([s.min_p for s in samplings], device=scaled.device).unsqueeze(1)
    ordered = ordered.masked_fill(probabilities < min_p * probabilities[:, :1], -torch.inf)
    return torch.full_like(scaled, -torch.inf).scatter(1, order, ordered)
