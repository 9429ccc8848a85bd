"""How does a row of many branches attend on a GPU? In one kernel over all of them, that skips blocks nobody looks at.

`attention.py` calls one kernel a branch, which is right on a CPU; a GPU waits between kernels longer than each of them
takes. PyTorch's flex attention is given who may look at whom, and compiles a kernel for it. Before it is used it is
tried against the other way, forward and backward: where it is not there, does not compile or gives other numbers, it is
left alone, and that is said once.

Easy to get wrong: a token's place is not where it lies in the row. Who looks at whom is decided by branches and places.

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
    from whetstone.learning.attention import Branches

_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""How far the two may be apart, as a share of their size; products of float32 may be made in TF32."""
_TRIED_TOKENS = 96
"""Length of the row of the trial."""

Attend = Callable[..., Tensor]


@functools.cache
def compiled() -> Callable[..., Any]:
    """Flex attention, compiled for whatever lengths come."""
    return torch.compile(_module().flex_attention, dynamic=True)


def _module() -> Any:
    """PyTorch's, which brings the compiler along: imported where it is used."""
    return importlib.import_module("torch.nn.attention.flex_attention")


def attend_at_once(
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
    """Attention of all branches of a row.

    Args:
        query: [1, H, T, D].
        key: [1, K, T, D]; H is a multiple of K.
        value: [1, K, T, D'].
        window: How far back a token looks, itself included; None: to the start.
        chunk: Tokens of the chunks a token keeps to; None: there are none.
        softcap: What scores are bent to stay below; None: any.
        sinks: [H] the score of a place that holds nothing.
        kernel: In the place of the compiled one.

    Returns:
        [1, H, T, D']
    """
    held: dict[Any, Any] = branches.masks
    kind = (window, chunk, query.device)
    if kind not in held:
        held[kind] = _mask(branches, window, chunk, query.device)
    score = None if softcap is None else _bent(softcap)
    options = {"score_mod": score, "block_mask": held[kind], "scale": scaling}
    run = kernel if kernel is not None else compiled()
    query, key, value = _of_one_dtype(query, key, value)
    gqa = query.shape[1] != key.shape[1]
    if sinks is None:
        mixed: Tensor = run(query, key, value, enable_gqa=gqa, **options)
        return mixed
    mixed, sums = run(query, key, value, enable_gqa=gqa, return_lse=True, **options)
    # a sink takes its share of what the softmax sums to
    return mixed * torch.sigmoid(sums - sinks.view(1, -1, 1)).unsqueeze(-1).to(mixed.dtype)


def suits(
    by_branch: Attend,
    make: Callable[[Sequence[int]], Branches],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: Mapping[str, Any],
) -> bool:
    """Return whether flex attention computes rows like this one: on CUDA, if it agrees with `by_branch`.

    The trial is repeated for each combination of precision, heads and options, because each compiles another kernel.

    Args:
        by_branch: The other implementation: (query, key, value, branches, **options) → [1, H, T, D'].
        make: Three branches of one root, of these lengths.
        query: [1, H, T, D].
        key: [1, K, T, D].
        value: [1, K, T, D'].
        options: Window, chunk, scaling, softcap and sinks of `attend_at_once`.
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


def _common_dtype(query: Tensor, value: Tensor) -> torch.dtype:
    """Return the precision in which attention is computed: that of autocast, otherwise that of the values.

    Rotary embeddings multiply queries and keys with float32 angles, so under autocast their precision differs from
    that of the values. `scaled_dot_product_attention` converts them itself; a compiled kernel has no backward pass for
    operands of two precisions.
    """
    kind = query.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else value.dtype


def _of_one_dtype(*tensors: Tensor) -> tuple[Tensor, ...]:
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
    ways: tuple[Attend, ...] = (by_branch, attend_at_once)
    found = []
    try:
        for way in ways:
            with torch.enable_grad():  # also where the first pass is one without
                given = [each.clone().requires_grad_() for each in inputs]
                mixed = way(*given, branches, **options)
                slopes = torch.autograd.grad(mixed, given, pull.to(mixed))
            found.append([mixed.detach(), *slopes])
        apart = max(float((a - b).norm() / a.norm()) for a, b in zip(*found, strict=True))
        bound = _TOLERANCE.get(_common_dtype(query, value), 0.0)
        why = f"gives other numbers ({apart:.2g} of their size)" if not apart <= bound else ""
    except Exception as error:  # a compiler's faults have no common kind
        why = f"does not work here ({type(error).__name__})"
    if why:
        warnings.warn(f"flex attention {why}; shared beginnings are learned branch by branch", stacklevel=2)
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
