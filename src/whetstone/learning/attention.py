"""Who looks at whom in a row of trees? Each token at its own branch up to the root, through Transformers' interface.

The function is registered under a name and chosen by the learner's view of a model, so the model's own code is
unchanged. Each branch is one call of PyTorch's fused attention: its queries over the keys of the branches in front
of it and its own. Nothing is computed for pairs of tokens that stand in different branches.

Easy to get wrong: slicing a tensor many times costs a whole tensor of zeros per slice in the backward pass. The
row is split once, and the pieces are put together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "whetstone_branches"


@dataclass(frozen=True, slots=True)
class Branches:
    """The runs of tokens a row is made of, in the order they lie."""

    starts: tuple[int, ...]
    """[N] the place of each run's first token in its segments."""
    lengths: tuple[int, ...]
    """[N] tokens of each; may be 0."""
    ancestors: tuple[tuple[int, ...], ...]
    """[N] the runs in front of each, from the root down."""
    _biases: dict[Any, list[Tensor | None]] = field(default_factory=dict)
    """Made once for all layers of a pass."""

    def biases(self, window: int | None, like: Tensor) -> list[Tensor | None]:
        """[N] of [queries, keys]: 0 where a token may look, −inf elsewhere; None where plain causal does.

        Args:
            window: How far back a token looks, itself included; None: to the start.
        """
        kind = (window, like.dtype, like.device)
        if kind not in self._biases:
            self._biases[kind] = [
                _bias(start, length, window, like) for start, length in zip(self.starts, self.lengths, strict=True)
            ]
        return self._biases[kind]


def attend_to_branches(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    branches: Branches | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention within each branch and to those in front of it.

    Args:
        query: [1, H, T, D].
        key: [1, K, T, D]; H is a multiple of K.
        value: Like `key`.
        attention_mask: Not read; `branches` knows who may look where.
        others: Dropout among them, which is not applied: the policy is learned as it is sampled.

    Returns:
        [1, T, H, D]

    Raises:
        NotImplementedError: The model asks for attention sinks.
    """
    if others.get("s_aux") is not None:
        raise NotImplementedError("the learner has no attention sinks")
    assert branches is not None  # given with every forward pass
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    queries, keys, values = (torch.split(x, list(branches.lengths), dim=2) for x in (query, key, value))
    mixed = []
    for i, bias in enumerate(branches.biases(sliding_window, query)):
        if branches.lengths[i] == 0:
            continue
        path = (*branches.ancestors[i], i)
        behind = keys[i] if len(path) == 1 else torch.cat([keys[a] for a in path], 2)
        read = values[i] if len(path) == 1 else torch.cat([values[a] for a in path], 2)
        mixed.append(_attention(queries[i], behind, read, bias, scaling, softcap))
    return torch.cat(mixed, 2).transpose(1, 2), None


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    scaling: float | None,
    softcap: float | None,
) -> Tensor:
    if softcap is None:
        causal = bias is None
        return scaled_dot_product_attention(query, key, value, attn_mask=bias, is_causal=causal, scale=scaling)
    scores = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.transpose(-1, -2)
    scores = torch.tanh(scores / softcap) * softcap
    if bias is None:
        bias = torch.full(scores.shape[-2:], -torch.inf, dtype=scores.dtype, device=scores.device).triu(1)
    return (scores + bias).softmax(-1) @ value


def _bias(start: int, length: int, window: int | None, like: Tensor) -> Tensor | None:
    end = start + length
    if start == 0 and (window is None or end <= window):
        return None
    places, keys = torch.arange(start, end, device=like.device).unsqueeze(1), torch.arange(end, device=like.device)
    seen = keys <= places
    if window is not None:
        seen &= keys > places - window
    return torch.zeros(length, end, dtype=like.dtype, device=like.device).masked_fill_(~seen, -torch.inf)


AttentionInterface.register(NAME, attend_to_branches)
