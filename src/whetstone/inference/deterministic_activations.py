"""Position-invariant activations: every element has the same bits wherever it is in a tensor.

PyTorch computes silu, sigmoid and the tanh form of gelu in SIMD vectors. The remainder at the end of a tensor, or of a
thread's part of it, is computed element by element with another exponential function. On processors with AVX-512, whose
vectors are longest, the last 16 elements of a tensor of 17 × 16 sometimes differ in their last bits. Tensors are
therefore padded to whole vectors.

Note:
    Threads divide only large tensors, so the padding depends on the number of threads that will be used.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.activations import ACT2CLS, XIELUActivation

_VECTORS = 32
"""Maximum number of float32 elements that are computed together: two vectors of 512 bits."""
_SHARE = 32_768
"""Minimum number of elements that PyTorch assigns to a thread (`at::internal::GRAIN_SIZE`)."""
_GELU_SHARED = 16_384
"""Number of elements above which gelu uses all threads (`GELU_MIN_ELEMENTS_FOR_MULTI_THREADING`)."""


def deterministic_activation(activation: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """Apply an activation so that the bits of an element do not depend on other elements.

    Args:
        activation: Maps a tensor of any shape to one of the same shape.
        inputs: Float32 tensor on a CPU; other tensors are passed to the activation unchanged.
    """
    if inputs.dtype != torch.float32 or inputs.device.type != "cpu":
        return activation(inputs)
    missing = _padded_count(inputs.numel(), torch.get_num_threads()) - inputs.numel()
    if not missing:
        return activation(inputs.contiguous())
    return activation(pad(inputs.reshape(-1), (0, missing)))[:-missing].view(inputs.shape)


def make_activations_deterministic(model: torch.nn.Module) -> None:
    """Replace the activation modules of a model by position-invariant ones, in place.

    Only activations of Transformers without weights are replaced. The class of the module changes, not its settings.
    """
    for module in model.modules():
        kind: Any = type(module)
        if kind in _activations():
            module.__class__ = _deterministic_class(kind)


def _padded_count(count: int, threads: int) -> int:
    """Return a padded size for which each thread computes whole vectors, in gelu and in other activations.

    Args:
        count: Number of elements of the tensor.
        threads: Maximum number of threads that PyTorch uses.
    """
    while True:
        shares = min(threads, -(-count // _SHARE)) or 1
        unit = _VECTORS * math.lcm(shares, threads if count > _GELU_SHARED else 1)
        filled = -(-count // unit) * unit
        if filled == count:
            return count
        count = filled


@functools.cache
def _activations() -> frozenset[type[torch.nn.Module]]:
    """Return the activation classes of Transformers that have no weights."""
    named: list[type[torch.nn.Module]] = [kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values()]
    return frozenset(named) - {torch.nn.PReLU, XIELUActivation}


@functools.cache
def _deterministic_class(kind: Any) -> type[torch.nn.Module]:
    def forward(self: torch.nn.Module, inputs: Tensor) -> Tensor:
        return deterministic_activation(functools.partial(kind.forward, self), inputs)

    return type(kind.__name__, (kind,), {"forward": forward})
