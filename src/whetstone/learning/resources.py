"""Cost of an update (floating-point operations, memory, utilization) and the change of the weights.

Note:
    Utilization counts the operations that the computed tokens need, without recomputation that saves memory. The peak
    of a machine is measured on it, with one large matrix product.
"""

from __future__ import annotations

import functools
import math
import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whetstone.learning.packing import MicroBatch
from whetstone.policies import peak_memory, setting_of

MOVEMENT_LOOKED_AT = 4096
"""Numbers of each tensor whose movement is measured; a copy of all of them would double the weights' memory."""


class Flops:
    """The arithmetic of forward and backward passes, two operations for a multiplication with its addition.

    Args:
        dtype: What the arithmetic is done in.

    Source: Chowdhery et al. 2022, arXiv:2204.02311, appendix B (model FLOPs utilization).
    """

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        anything: Any = model
        config = anything.config.get_text_config()
        head = anything.get_output_embeddings()
        ends = [end for end in (anything.get_input_embeddings(), head) if end is not None]
        outside = {id(p) for end in ends for p in end.parameters()}
        self._body = sum(p.numel() for p in model.parameters() if p.ndim == 2 and id(p) not in outside)
        self._head = head.weight.numel() if head is not None else 0
        heads = setting_of(config, "num_attention_heads") or 0  # none: a state instead of attention
        width = setting_of(config, "head_dim") or (setting_of(config, "hidden_size") or 0) // max(1, heads)
        self._pair = (setting_of(config, "num_hidden_layers") or 0) * heads * width
        self._device, self._dtype = next(model.parameters()).device, dtype

    def of(self, micro: MicroBatch, *, backward: bool = True) -> int:
        """Of one micro-batch, forward and backward; or forward alone, which is a third of it."""
        runs = zip(micro.branches.starts, micro.branches.lengths, strict=True)
        pairs = sum(n * start + n * (n + 1) // 2 for start, n in runs)
        found: int = 6 * (len(micro.ids) * self._body + len(micro.rows) * self._head) + 12 * pairs * self._pair
        return found if backward else found // 3

    def of_sizes(self, tokens: int, pairs: int) -> int:
        """Of the layers alone, for so many tokens, of which so many pairs look at each other."""
        return 6 * tokens * self._body + 12 * pairs * self._pair

    def utilization(self, flops: int, seconds: float) -> float:
        """The share of what a large matrix product reaches on this machine."""
        return flops / seconds / peak_flops(self._device.type, self._dtype)


@functools.cache
def peak_flops(device: str, dtype: torch.dtype) -> float:
    """Operations per second of a large matrix product, measured once.

    The numbers are not constant: on a GPU a product of ones takes less power and runs faster than one of real weights.
    If memory does not suffice, a smaller product is measured. The size is small compared with a model, because
    its memory counts in the peak that a run reports.
    """
    size, repeats = (4096, 8) if device in ("cuda", "xpu") else (1024, 1)
    while True:
        try:
            return _product_flops(size, repeats, device, dtype)
        except RuntimeError:  # out of memory: a measurement must not end a run
            if size <= 512:
                raise
            size //= 2


def _product_flops(size: int, repeats: int, device: str, dtype: torch.dtype) -> float:
    left = torch.arange(size * size, device=device, dtype=torch.float32).sin_().to(dtype).view(size, size)
    product = torch.empty_like(left)
    best = math.inf
    for _ in range(4):
        began = time.perf_counter()
        for _ in range(repeats):
            torch.mm(left, left, out=product)
        product[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 * repeats / best


class Movement:
    """How far an update moves the weights, as a share of them, from up to 4,096 numbers of each tensor."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._before = [self._some(p).clone() for p in parameters]

    def ratio(self) -> float:
        """‖Δw‖ / ‖w‖ since this was made."""
        if not self._before:
            return 0.0
        moved = torch.stack([(self._some(p) - b).norm() for p, b in zip(self._parameters, self._before, strict=True)])
        were = torch.stack([b.norm() for b in self._before])
        return float((moved.norm() / were.norm().clamp_min(1e-12)).item())

    def _some(self, parameter: Tensor) -> Tensor:
        return parameter.detach().flatten()[:MOVEMENT_LOOKED_AT]


def peak_memory_gib(device: torch.device) -> float:
    """The most memory that was held so far: of the device where it has its own, else of this process."""
    held = peak_memory(device)
    if held is not None:
        return held / 2**30
    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
