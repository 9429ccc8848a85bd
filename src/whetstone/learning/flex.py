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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from whetstone.learning.attention import Branches

_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""How far the two may be apart, as a share of their size; products of float32 may be made in TF32."""
_TRIED = (2, 1, 96, 64)
"""Heads of queries and of keys, tokens, and numbers a head, of the trial."""

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
    gqa = query.shape[1] != key.shape[1]
    if sinks is None:
        mixed: Tensor = run(query, key, value, enable_gqa=gqa, **options)
        return mixed
    mixed, sums = run(query, key, value, enable_gqa=gqa, return_lse=True, **options)
    # a sink takes its share of what the softmax sums to
    return mixed * torch.sigmoid(sums - sinks.view(1, -1, 1)).unsqueeze(-1).to(mixed.dtype)


def suits(by_branch: Attend, make: Callable[[Sequence[int]], Branches], like: Tensor) -> bool:
    """Whether it is to be used for rows like this one: on CUDA, where it gives what branch by branch gives.

    Args:
        by_branch: The other way: (query, key, value, branches) → [1, H, T, D].
        make: Three branches of one root, of these lengths.
    """
    if like.device.type != "cuda":
        return False
    kind = (like.device, like.dtype)
    if kind not in _FOUND:
        _FOUND[kind] = _agrees(by_branch, make, like.device, like.dtype)
    return _FOUND[kind]


_FOUND: dict[tuple[torch.device, torch.dtype], bool] = {}


def _agrees(
    by_branch: Attend, make: Callable[[Sequence[int]], Branches], device: torch.device, dtype: torch.dtype
) -> bool:
    heads, kept, tokens, width = _TRIED
    branches = make((tokens // 3, tokens // 3, tokens - 2 * (tokens // 3)))
    numbers = torch.Generator().manual_seed(0)
    shapes = ((1, heads, tokens, width), (1, kept, tokens, width), (1, kept, tokens, width), (1, heads, tokens, width))
    query, key, value, pull = (torch.randn(shape, generator=numbers).to(device, dtype) for shape in shapes)
    options: dict[str, Any] = {"window": None, "chunk": None, "scaling": None, "softcap": None, "sinks": None}
    ways: list[Attend] = [by_branch, functools.partial(attend_at_once, **options)]
    found = []
    try:
        for way in ways:
            with torch.enable_grad():  # also where the first pass is one without
                given = [each.clone().requires_grad_() for each in (query, key, value)]
                mixed = way(*given, branches)
                mixed.backward(pull)  # type: ignore[no-untyped-call]
            found.append([mixed.detach(), *(each.grad for each in given)])
        apart = max(float((a - b).norm() / a.norm()) for a, b in zip(*found, strict=True))
        why = f"gives other numbers ({apart:.2g} of their size)" if not apart <= _TOLERANCE.get(dtype, 0.0) else ""
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
