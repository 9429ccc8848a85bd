"""How does an activation give a number the same bits wherever it lies in a tensor? By leaving it no last few.

PyTorch computes silu, sigmoid and the tanh form of gelu in vectors of numbers, and what is left over at the end of a
tensor, or of a thread's share of it, one by one with another exponential: 17 rows of 16 numbers end with 16 whose last
bits now and then differ (processors with AVX-512, whose vectors are longest). So tensors are filled up first.

Easy to get wrong: threads share a tensor only where it is large, so how far to fill depends on how many will.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.activations import ACT2CLS, XIELUActivation

_VECTORS = 32
"""Numbers of float32 that are computed at once at most: two vectors of 512 bits."""
_SHARE = 32_768
"""Numbers that PyTorch gives a thread at least (`at::internal::GRAIN_SIZE`)."""


def evened(activation: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """An activation of each number alone, the same to the last bit whatever other numbers there are.

    Args:
        activation: From a tensor of any shape to one of the same shape.
        inputs: Float32 on a CPU; anything else goes through as it is.
    """
    if inputs.dtype != torch.float32 or inputs.device.type != "cpu":
        return activation(inputs)
    missing = _even(inputs.numel(), torch.get_num_threads()) - inputs.numel()
    if not missing:
        return activation(inputs.contiguous())
    return activation(pad(inputs.reshape(-1), (0, missing)))[:-missing].view(inputs.shape)


def even_activations(model: torch.nn.Module) -> None:
    """Turn a model's activations into evened ones, in place."""
    for module in model.modules():
        kind: Any = type(module)
        if kind in _activations():
            module.__class__ = _evened_class(kind)


def _even(count: int, threads: int) -> int:
    """The least number from `count` on that each thread's share divides into whole vectors."""
    while True:
        shares = min(threads, -(-count // _SHARE)) or 1
        filled = -(-count // (_VECTORS * shares)) * _VECTORS * shares
        if filled == count:
            return count
        count = filled


@functools.cache
def _activations() -> frozenset[type[torch.nn.Module]]:
    """The classes Transformers makes activations of that hold no weights."""
    named: list[type[torch.nn.Module]] = [kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values()]
    return frozenset(named) - {torch.nn.PReLU, XIELUActivation}


@functools.cache
def _evened_class(kind: Any) -> type[torch.nn.Module]:
    def forward(self: torch.nn.Module, inputs: Tensor) -> Tensor:
        return evened(functools.partial(kind.forward, self), inputs)

    return type(kind.__name__, (kind,), {"forward": forward})
