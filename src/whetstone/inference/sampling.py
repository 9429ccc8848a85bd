"""How is one token drawn from logits? By a number that depends on the request's seed and the token's place alone.

Easy to get wrong: one shared random stream makes a request's tokens depend on who else is in the batch and
on the order of arrival. Here the draw for place `t` is a hash of (seed, t), so it depends on neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token for each row."""

    tokens: Tensor
    """[B] ids."""
    logprobs: Tensor
    """[B] under the sampling distribution."""
    entropies: Tensor
    """[B] nats."""


def draw(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> Drawn:
    """Draw one token a row by inverting the cumulative distribution.

    Args:
        logits: [B, V].
        temperatures: [B] zero or more; 0 takes the likeliest token, the first of equals.
        uniforms: [B] in [0, 1), float64.
    """
    greedy = temperatures == 0
    logprobs = torch.log_softmax(logits.float() / torch.where(greedy, 1.0, temperatures).unsqueeze(1), dim=-1)
    probabilities = logprobs.exp()
    entropies = -(probabilities * logprobs.clamp_min(-1e4)).sum(-1)
    cumulative = probabilities.double().cumsum(-1)
    # strictly above the threshold: a token of probability 0 never has its turn
    drawn = torch.searchsorted(cumulative, (uniforms * cumulative[:, -1]).unsqueeze(1), right=True).squeeze(1)
    tokens = torch.where(greedy, logits.argmax(-1), drawn.clamp_max(logits.shape[1] - 1))
    chosen = logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1)
    return Drawn(tokens, torch.where(greedy, 0.0, chosen), entropies)


def uniforms(seeds: np.ndarray, places: np.ndarray) -> Tensor:
    """[B] numbers in [0, 1), each a hash of its seed and place (SplitMix64; 32 bits of it).

    32 bits leave a gap below 1, so a threshold never rounds up to the whole sum.

    Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", finaliser of figure 16.
    """
    with np.errstate(over="ignore"):
        state = seeds.astype(np.uint64) + (places.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return torch.from_numpy((state >> np.uint64(32)).astype(np.float64) / 2.0**32)
