"""Who looks at whom in a row of trees? Each token at its own branch up to the root, through Transformers' interface.

The function is registered under a name and chosen by the learner's view of a model, so the model's own code is
unchanged. Each branch is one call of PyTorch's fused attention: its queries over the keys of the branches in front
of it and its own. Nothing is computed for pairs of tokens that stand in different branches. On a GPU one kernel does
all branches where that gives the same (`flex.py`).

Easy to get wrong: slicing a tensor many times costs a whole tensor of zeros per slice in the backward pass. The
row is split once, and the pieces are put together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from whetstone.learning import flex
from whetstone.policies import chunk_of, softmax_with_sinks

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
    masks: dict[Any, Any] = field(default_factory=dict)
    """The same for one kernel over all runs: see `flex.py`."""

    def biases(self, window: int | None, chunk: int | None, like: Tensor) -> list[Tensor | None]:
        """[N] of [queries, keys]: 0 where a token may look, −inf elsewhere; None where plain causal does.

        Args:
            window: How far back a token looks, itself included; None: to the start.
            chunk: Tokens of the chunks a token keeps to; None: there are none.
        """
        kind = (window, chunk, like.dtype, like.device)
        if kind not in self._biases:
            self._biases[kind] = [
                _bias(start, length, window, chunk, like)
                for start, length in zip(self.starts, self.lengths, strict=True)
            ]
        return self._biases[kind]


@dataclass(slots=True)
class Aim:
    """What the next forward pass of a model computes. Not every model hands on to its layers what it is given."""

    branches: Branches | None = None


def aim_of(network: torch.nn.Module) -> Aim:
    """What the attention of all layers of a model will look at. Activations that are computed again in the backward
    pass read it again: it stays as it is until then."""
    aim = Aim()
    for module in network.modules():
        vars(module)["whetstone_aim"] = aim
    return aim


def attend_to_branches(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention within each branch and to those in front of it.

    Args:
        query: [1, H, T, D].
        key: [1, K, T, D]; H is a multiple of K.
        value: [1, K, T, D'].
        attention_mask: Not read; the branches know who may look where.
        s_aux: [H] attention sinks: the score of a place that holds nothing.
        position_bias: Added to scores.
        others: Dropout among them, which is not applied: the policy is learned as it is sampled.

    Returns:
        [1, T, H, D']

    Raises:
        NotImplementedError: Scores have a bias; it is not one of trees.
    """
    if position_bias is not None:
        raise NotImplementedError("trees have no bias by position")
    branches, chunk = vars(module)["whetstone_aim"].branches, chunk_of(module)
    options = {
        "window": sliding_window, "chunk": chunk, "scaling": scaling, "softcap": softcap, "sinks": s_aux,
    }  # fmt: skip
    at_once = flex.suits(_branch_by_branch, _three_runs, query, key, value, options)
    attend: Any = flex.attend_at_once if at_once else _branch_by_branch
    mixed: Tensor = attend(query, key, value, branches, **options)
    return mixed.transpose(1, 2), None


def _branch_by_branch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    branches: Branches,
    window: int | None = None,
    chunk: int | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """[1, H, T, D'] one call of a kernel for each branch."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    queries, keys, values = (torch.split(x, list(branches.lengths), dim=2) for x in (query, key, value))
    mixed = []
    for i, bias in enumerate(branches.biases(window, chunk, query)):
        if branches.lengths[i] == 0:
            continue
        path = (*branches.ancestors[i], i)
        behind = keys[i] if len(path) == 1 else torch.cat([keys[a] for a in path], 2)
        read = values[i] if len(path) == 1 else torch.cat([values[a] for a in path], 2)
        mixed.append(_attention(queries[i], behind, read, bias, scaling, softcap, sinks))
    return torch.cat(mixed, 2)


def _three_runs(lengths: Sequence[int]) -> Branches:
    """A root and two that go on from it."""
    root, one, other = lengths
    return Branches((0, root, root), (root, one, other), ((), (0,), (0,)))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    if softcap is None and sinks is None:
        causal = bias is None
        return scaled_dot_product_attention(query, key, value, attn_mask=bias, is_causal=causal, scale=scaling)
    scores = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.transpose(-1, -2)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if bias is None:
        bias = torch.full(scores.shape[-2:], -torch.inf, dtype=scores.dtype, device=scores.device).triu(1)
    scores = scores + bias
    shares = scores.softmax(-1) if sinks is None else softmax_with_sinks(scores, sinks.view(-1, 1, 1))
    return shares @ value


def _bias(start: int, length: int, window: int | None, chunk: int | None, like: Tensor) -> Tensor | None:
    end = start + length
    if start == 0 and (window is None or end <= window) and (chunk is None or end <= chunk):
        return None
    places, keys = torch.arange(start, end, device=like.device).unsqueeze(1), torch.arange(end, device=like.device)
    seen = keys <= places
    if window is not None:
        seen &= keys > places - window
    if chunk is not None:
        seen &= keys // chunk == places // chunk
    return torch.zeros(length, end, dtype=like.dtype, device=like.device).masked_fill_(~seen, -torch.inf)


AttentionInterface.register(NAME, attend_to_branches)
