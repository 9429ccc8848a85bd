"""How do segments of many lengths become a few forward passes? Sorted, cut at a token budget, padded on the right.

Easy to get wrong: a token's log-prob is read one place to its left, so the first token of a segment has none;
and with padding on the right, causal attention alone keeps every real token from seeing it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whetstone.trajectory import Segment


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward pass: B segments of up to L tokens, A action tokens among them."""

    indices: tuple[int, ...]
    """[B] where each segment stands in the sequence that was packed."""
    ids: Tensor
    """[B, L] padded with 0 on the right."""
    action_mask: Tensor
    """[B, L] True on the tokens to be trained; never on the first of a segment."""
    sampler_logprobs: Tensor
    """[A] in the order of `action_mask`, row by row; NaN where none was drawn."""
    advantages: Tensor
    """[A] 0 where credit was not given."""


def pack(segments: Sequence[Segment], *, token_budget: int, device: torch.device) -> Iterator[MicroBatch]:
    """Micro-batches of at most `token_budget` tokens, padding included; a longer segment has one of its own.

    Every segment is in exactly one of them.
    """
    order = sorted(range(len(segments)), key=lambda i: (-len(segments[i]), i))
    while order:
        width = len(segments[order[0]])
        count = max(1, token_budget // width)
        yield _micro_batch(order[:count], segments, width, device)
        order = order[count:]


def _micro_batch(indices: Sequence[int], segments: Sequence[Segment], width: int, device: torch.device) -> MicroBatch:
    chosen = [segments[i] for i in indices]
    ids = torch.zeros(len(chosen), width, dtype=torch.long)
    mask = torch.zeros(len(chosen), width, dtype=torch.bool)
    logprobs = torch.full((len(chosen), width), torch.nan)
    advantages = torch.zeros(len(chosen), width)
    for row, segment in enumerate(chosen):
        n = len(segment)
        ids[row, :n] = torch.tensor(segment.tokens.ids)
        mask[row, :n] = torch.tensor(segment.action_mask)
        logprobs[row, :n] = torch.tensor(segment.tokens.logprobs)
        if segment.advantages is not None:
            advantages[row, :n] = torch.tensor(segment.advantages)
    mask[:, 0] = False  # nothing stands before it, so nothing predicts it
    return MicroBatch(
        tuple(indices), ids.to(device), mask.to(device), logprobs[mask].to(device), advantages[mask].to(device)
    )
