"""Cost of an update (floating-point operations, memory, utilization) and the change of the weights.

Note:
    Utilization counts the operations that the computed tokens need, without recomputation that saves memory. The peak
    of a machine is measured on it, with one large matrix product.
"""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whetstone.learning.packing import MicroBatch
from whetstone.policies import get_setting, peak_memory

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

MEASURED_NUMBERS = 4096
"""Maximum number of elements of each tensor whose change is measured. A copy of all would double the memory of the
weights."""


class Flops:
    """Counts floating-point operations of forward and backward passes; a multiply-add counts as two.

    Args:
        dtype: Precision of the operations.

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
        heads = get_setting(config, "num_attention_heads") or 0  # none: a state instead of attention
        width = get_setting(config, "head_dim") or (get_setting(config, "hidden_size") or 0) // max(1, heads)
        self._pair = (get_setting(config, "num_hidden_layers") or 0) * heads * width
        self._device, self._dtype = next(model.parameters()).device, dtype

    def of(self, micro: MicroBatch, *, backward: bool = True) -> int:
        """Return the operations of a micro-batch, forward and backward.

        A forward pass is a third of them.
        """
        runs = zip(micro.branches.starts, micro.branches.lengths, strict=True)
        pairs = sum(n * start + n * (n + 1) // 2 for start, n in runs)
        total: int = 6 * (len(micro.ids) * self._body + len(micro.rows) * self._head) + 12 * pairs * self._pair
        return total if backward else total // 3

    def of_sizes(self, tokens: int, pairs: int) -> int:
        """Return the operations of the layers, for numbers of tokens and attention pairs."""
        return 6 * tokens * self._body + 12 * pairs * self._pair

    def utilization(self, flops: int, seconds: float) -> float:
        """Return the model FLOPs utilization (MFU): the fraction of the rate of a large matrix product.

        Args:
            flops: Floating-point operations.
            seconds: Duration, in seconds.
        """
        return flops / seconds / peak_flops(self._device.type, self._dtype)


@functools.cache
def peak_flops(device: str, dtype: torch.dtype) -> float:
    """Measure the floating-point operations per second of a large matrix product; cached.

    Real numbers are multiplied: on a GPU a product of ones takes less power and runs faster. If memory does not
    suffice, a smaller product is measured. The size is small compared with a model, because its memory counts in the
    peak that a run reports.

    Args:
        device: Type of the device, such as `cpu`.
        dtype: Data type of the product.
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


class UpdateNorm:
    """Measures the relative change of weights in an update, from up to 4,096 elements of each tensor.

    Args:
        parameters: Parameters before the update.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._before = [self._some(p).clone() for p in parameters]

    def ratio(self) -> float:
        """Return ‖Δw‖ / ‖w‖ since this object was created; 0 without parameters."""
        if not self._before:
            return 0.0
        moved = torch.stack([(self._some(p) - b).norm() for p, b in zip(self._parameters, self._before, strict=True)])
        were = torch.stack([b.norm() for b in self._before])
        return float((moved.norm() / were.norm().clamp_min(1e-12)).item())

    def _some(self, parameter: Tensor) -> Tensor:
        return parameter.detach().flatten()[:MEASURED_NUMBERS]


def peak_memory_gib(device: torch.device) -> float:
    """Return the peak memory of a device in GiB; that of this process for the CPU."""
    peak = peak_memory(device)
    if peak is not None:
        return peak / 2**30
    if resource is None:
        return 0.0
    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
