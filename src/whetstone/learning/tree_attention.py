"""Tree attention for packed prefix trees, registered as an attention function of Transformers.

Each token attends to its own branch and to the branches between it and the root. The learner's view of a model selects
the function by name, so the model's own code is unchanged. Each branch is one call of PyTorch's fused attention, with
its queries over the keys of its ancestors and its own. Nothing is computed for pairs of tokens in different branches.
On a GPU one kernel computes all branches if its results agree (`flex_attention.py`).

Note:
    Slicing a tensor many times costs a whole tensor of zeros per slice in the backward pass. The row is split once, and
    the pieces are concatenated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from whetstone.learning import flex_attention
from whetstone.policies import chunk_size, softmax_with_sinks

NAME = "whetstone_branches"
_CONTEXT = "whetstone_attention_context"


@dataclass(frozen=True, slots=True)
class Branches:
    """Runs of tokens that make up a packed row, in their order in the row."""

    starts: tuple[int, ...]
    """[N] position of each run's first token in its segments."""
    lengths: tuple[int, ...]
    """[N] number of tokens of each run; may be 0."""
    ancestors: tuple[tuple[int, ...], ...]
    """[N] indices of the runs between the root and each run, from the root down."""
    _biases: dict[Any, list[Tensor | None]] = field(default_factory=dict)
    """Masks of all layers of a pass, computed once."""
    masks: dict[Any, Any] = field(default_factory=dict)
    """Masks for one kernel over all runs; see `flex_attention.py`."""

    def attention_biases(self, window: int | None, chunk: int | None, like: Tensor) -> list[Tensor | None]:
        """Return [N] attention biases [queries, keys] per run; None: plain causal attention.

        A bias is 0 for keys that a token attends to, and −inf for others.

        Args:
            window: Number of tokens that a token attends to, including itself; None: all.
            chunk: Tokens per chunk that a token attends within; None: no chunks.
        """
        kind = (window, chunk, like.dtype, like.device)
        if kind not in self._biases:
            self._biases[kind] = [
                _bias(start, length, window, chunk, like)
                for start, length in zip(self.starts, self.lengths, strict=True)
            ]
        return self._biases[kind]


@dataclass(slots=True)
class AttentionContext:
    """Branches that the attention layers read in the next forward pass.

    A shared object is used because not every model passes its arguments on to its layers.
    """

    branches: Branches | None = None
    """Branches of the micro-batch; None between forward passes."""


def attach_attention_context(network: torch.nn.Module) -> AttentionContext:
    """Attach a shared context to all modules of a model and return it.

    Activations that are recomputed in the backward pass read the context again, so it must not change until then.
    """
    context = AttentionContext()
    for module in network.modules():
        vars(module)[_CONTEXT] = context
    return context


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
    """Compute attention within each branch and to its ancestors.

    Transformers calls the function in every attention layer.

    Args:
        module: Attention layer, with its context.
        query: [1, H, T, D] queries.
        key: [1, K, T, D] keys; H is a multiple of K.
        value: [1, K, T, D'] values.
        attention_mask: Not used; the branches define the mask.
        scaling: Factor of the scores; None: D^-0.5.
        sliding_window: Number of tokens that a token attends to, including itself; None: all.
        softcap: Soft cap of the scores; None: no cap.
        s_aux: [H] scores of the attention sinks; None: no sinks.
        position_bias: Bias of the scores by position; must be None.
        others: Further arguments of Transformers. Dropout is not applied: the policy is trained as it is sampled.

    Returns:
        [1, T, H, D'] outputs, and None instead of attention weights.

    Raises:
        NotImplementedError: If the scores have a bias by position.
    """
    if position_bias is not None:
        raise NotImplementedError("tree attention does not support a bias by position")
    branches, chunk = vars(module)[_CONTEXT].branches, chunk_size(module)
    options = {
        "window": sliding_window, "chunk": chunk, "scaling": scaling, "softcap": softcap, "sinks": s_aux,
    }  # fmt: skip
    at_once = flex_attention.supports_flex_attention(_branch_by_branch, _three_runs, query, key, value, options)
    attend: Any = flex_attention.attend_in_one_kernel if at_once else _branch_by_branch
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
    """Compute [1, H, T, D'] attention with one kernel call per branch."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    queries, keys, values = (torch.split(x, list(branches.lengths), dim=2) for x in (query, key, value))
    mixed = []
    for i, bias in enumerate(branches.attention_biases(window, chunk, query)):
        if branches.lengths[i] == 0:
            continue
        path = (*branches.ancestors[i], i)
        path_keys = keys[i] if len(path) == 1 else torch.cat([keys[a] for a in path], 2)
        path_values = values[i] if len(path) == 1 else torch.cat([values[a] for a in path], 2)
        mixed.append(_attention(queries[i], path_keys, path_values, bias, scaling, softcap, sinks))
    return torch.cat(mixed, 2)


def _three_runs(lengths: Sequence[int]) -> Branches:
    """Return a root with two branches."""
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
