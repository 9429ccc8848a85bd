"""Tree attention on a GPU with FlexAttention: one kernel for all branches, which skips masked blocks.

`attention.py` calls one kernel per branch, which suits a CPU; on a GPU the gaps between kernels take longer than the
kernels. FlexAttention compiles a kernel for the mask. Before its first use it is compared with the other
implementation, forward and backward. If it is missing, does not compile or gives other numbers, it is not used, and a
warning is printed once.

Note:
    The position of a token is not its index in the row. The mask depends on branches and positions.

Source: Dong et al. 2024, arXiv:2412.05496 (flex attention).
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from whetstone.learning.tree_attention import Branches

_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Maximum difference of the two implementations, relative to their size; float32 products may be computed in TF32."""
_TRIED_TOKENS = 96
"""Number of tokens of the comparison."""

Attend = Callable[..., Tensor]


@functools.cache
def compile_flex_attention() -> Callable[..., Any]:
    """Return PyTorch's FlexAttention, compiled for dynamic lengths; cached."""
    return torch.compile(_module().flex_attention, dynamic=True)


def _module() -> Any:
    """Import PyTorch's FlexAttention on first use, because it loads the compiler."""
    return importlib.import_module("torch.nn.attention.flex_attention")


def attend_in_one_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    branches: Branches,
    *,
    window: int | None,
    chunk: int | None,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
    kernel: Callable[..., Any] | None = None,
) -> Tensor:
    """Compute the attention of all branches of a row in one kernel.

    Args:
        query: [1, H, T, D] queries.
        key: [1, K, T, D] keys; H is a multiple of K.
        value: [1, K, T, D'] values.
        branches: Branches of the row, which define the mask.
        window: Number of tokens that a token attends to, including itself; None: all.
        chunk: Number of tokens per chunk that a token attends within; None: no chunks.
        scaling: Factor of the scores; None: D^-0.5.
        softcap: Soft cap of the scores; None: no cap.
        sinks: [H] scores of the attention sinks; None: no sinks.
        kernel: Kernel to use instead of the compiled FlexAttention.

    Returns:
        [1, H, T, D'] outputs.
    """
    masks: dict[Any, Any] = branches.masks
    kind = (window, chunk, query.device)
    if kind not in masks:
        masks[kind] = _mask(branches, window, chunk, query.device)
    score = None if softcap is None else _bent(softcap)
    options = {"score_mod": score, "block_mask": masks[kind], "scale": scaling}
    run = kernel if kernel is not None else compile_flex_attention()
    query, key, value = _cast_alike(query, key, value)
    gqa = query.shape[1] != key.shape[1]
    if sinks is None:
        mixed: Tensor = run(query, key, value, enable_gqa=gqa, **options)
        return mixed
    mixed, sums = run(query, key, value, enable_gqa=gqa, return_lse=True, **options)
    # a sink takes its fraction of the softmax sum
    return mixed * torch.sigmoid(sums - sinks.view(1, -1, 1)).unsqueeze(-1).to(mixed.dtype)


def supports_flex_attention(
    by_branch: Attend,
    make: Callable[[Sequence[int]], Branches],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: Mapping[str, Any],
) -> bool:
    """Return whether FlexAttention can compute rows like this one.

    Requires CUDA and results that agree with `by_branch`.

    The comparison is made once for each combination of precision, heads and options, because each compiles another
    kernel.

    Args:
        by_branch: The other implementation: (query, key, value, branches, **options) → [1, H, T, D'].
        make: Creates three branches of one root, of the given lengths.
        query: [1, H, T, D] queries.
        key: [1, K, T, D] keys.
        value: [1, K, T, D'] values.
        options: Window, chunk, scaling, softcap and sinks of `attend_in_one_kernel`.
    """
    if query.device.type != "cuda":
        return False
    shapes = tuple((each.dtype, each.shape[1], each.shape[3]) for each in (query, key, value))
    settings = tuple(each is not None for each in options.values())
    kind = (query.device, _common_dtype(query, value), shapes, settings)
    if kind not in _FOUND:
        _FOUND[kind] = _agrees(by_branch, make, query, key, value, options)
    return _FOUND[kind]


_FOUND: dict[Hashable, bool] = {}
"""Result of each comparison in this process."""


def _common_dtype(query: Tensor, value: Tensor) -> torch.dtype:
    """Return the precision in which attention is computed: that of autocast, otherwise that of the values.

    Rotary embeddings multiply queries and keys by float32 angles, so under autocast their precision differs from that
    of the values. `scaled_dot_product_attention` converts them; a compiled kernel has no backward pass for operands of
    two precisions.
    """
    kind = query.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else value.dtype


def _cast_alike(*tensors: Tensor) -> tuple[Tensor, ...]:
    dtype = _common_dtype(tensors[0], tensors[-1])
    return tuple(each.to(dtype) for each in tensors)


def _agrees(
    by_branch: Attend,
    make: Callable[[Sequence[int]], Branches],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: Mapping[str, Any],
) -> bool:
    tokens, numbers = _TRIED_TOKENS, torch.Generator().manual_seed(0)
    branches = make((tokens // 3, tokens // 3, tokens - 2 * (tokens // 3)))

    def drawn(heads: int, width: int, like: Tensor) -> Tensor:
        return torch.randn(1, heads, tokens, width, generator=numbers).to(like)

    inputs = [drawn(each.shape[1], each.shape[3], each) for each in (query, key, value)]
    pull = drawn(query.shape[1], value.shape[3], value)
    implementations: tuple[Attend, ...] = (by_branch, attend_in_one_kernel)
    outputs = []
    try:
        for attend in implementations:
            with torch.enable_grad():  # the first pass may run without gradients
                leaves = [each.clone().requires_grad_() for each in inputs]
                mixed = attend(*leaves, branches, **options)
                slopes = torch.autograd.grad(mixed, leaves, pull.to(mixed))
            outputs.append([mixed.detach(), *slopes])
        deviation = max(float((a - b).norm() / a.norm()) for a, b in zip(*outputs, strict=True))
        bound = _TOLERANCE.get(_common_dtype(query, value), 0.0)
        why = f"gives other numbers (relative difference {deviation:.2g})" if not deviation <= bound else ""
    except Exception as error:  # a compiler's faults have no common kind
        why = f"does not work here ({type(error).__name__})"
    if why:
        warnings.warn(f"flex attention {why}; shared prefixes are trained branch by branch", stacklevel=2)
    return not why


def _mask(branches: Branches, window: int | None, chunk: int | None, device: torch.device) -> Any:
    count, lengths = len(branches.lengths), torch.tensor(branches.lengths)
    run = torch.arange(count).repeat_interleave(lengths).to(device)
    place = torch.cat([torch.arange(s, s + n) for s, n in zip(branches.starts, branches.lengths, strict=True)])
    place = place.to(device)
    sees = torch.eye(count, dtype=torch.bool)
    for number, ancestors in enumerate(branches.ancestors):
        sees[number, list(ancestors)] = True
    sees = sees.to(device)

    def allowed(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = sees[run[q], run[k]] & (place[k] <= place[q])
        if window is not None:
            seen = seen & (place[k] > place[q] - window)
        if chunk is not None:
            seen = seen & (place[k] // chunk == place[q] // chunk)
        return seen

    return _module().create_block_mask(allowed, None, None, len(run), len(run), device=str(device))


def _bent(softcap: float) -> Callable[..., Tensor]:
    def bent(score: Tensor, batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.tanh(score / softcap) * softcap

    return bent
