"""Linear layers with frozen 4-bit weights (NF4), for LoRA adapters on a quantized base model (QLoRA).

A layer stores 4 bits per weight and one float32 scale per block of 64 weights, 4.5 bits per weight in all. Sampling and
training read `QuantizedLinear.weight`, which dequantizes, so both compute with the same numbers. Dequantized weights
are temporary: the backward pass dequantizes again.

Note:
    Scales are not quantized. Dequantized weights therefore quantize to the same bits again, and a base model that is
    written in full precision next to its adapters is restored exactly.

    bitsandbytes 0.50 dequantizes wrongly on CPUs if the number of columns is not a multiple of the block size. Weights
    are therefore passed to it as rows of one block each.

Source: Dettmers et al. 2023, arXiv:2305.14314; quantization by bitsandbytes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from whetstone.errors import PolicyError
from whetstone.optional_dependencies import install_command

BLOCK_SIZE = 64
"""Number of weights with one scale."""
KIND = "nf4"
"""Data type of the weights, in the terms of bitsandbytes."""


class QuantizedLinear(torch.nn.Linear):
    """Linear layer whose frozen weight is stored in 4 bits.

    Args:
        source: Layer to quantize; its bias is shared.
    """

    packed: Tensor
    """4-bit indices, two per byte."""
    scale_bits: Tensor
    """[blocks] float32 scales as int32, which a conversion of the model to another precision leaves unchanged."""

    def __init__(self, source: torch.nn.Linear) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = source.in_features, source.out_features
        self.compute_dtype = torch.float32
        """Data type of the dequantized weight; see `set_compute_dtype`."""
        flat = source.weight.detach().float().flatten()
        blocks = pad(flat, (0, -len(flat) % BLOCK_SIZE)).view(-1, BLOCK_SIZE)
        packed, state = _functional().quantize_4bit(blocks, blocksize=BLOCK_SIZE, quant_type=KIND)
        self.register_buffer("packed", packed)
        self.register_buffer("scale_bits", state.absmax.float().view(torch.int32))
        self.register_parameter("bias", source.bias)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """[out, in] dequantized weight, a new tensor."""
        return self.dequantize_weight(self.compute_dtype)

    def dequantize_weight(self, dtype: torch.dtype) -> Tensor:
        """Return the [out, in] weight in a data type."""
        functional = _functional()
        state = functional.QuantState(
            self.scale_bits.view(torch.float32),
            shape=torch.Size((len(self.scale_bits), BLOCK_SIZE)),
            blocksize=BLOCK_SIZE,
            quant_type=KIND,
            dtype=dtype,
        )
        flat: Tensor = functional.dequantize_4bit(self.packed, state).flatten()
        return flat[: self.out_features * self.in_features].view(self.out_features, self.in_features)

    def forward(self, input: Tensor) -> Tensor:
        """Map [..., in] inputs to [..., out]."""
        product: Tensor = _Product.apply(input, self)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias


class _Product(torch.autograd.Function):
    """Product with a dequantized weight, which is dequantized again for the gradient."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return linear(input, layer.weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.layer.weight, None


def quantize_linears(model: torch.nn.Module) -> None:
    """Replace all linear layers of a model by `QuantizedLinear`, in place, except the output layer.

    Raises:
        PolicyError: If bitsandbytes is not installed, or the model has no linear layer other than the output layer.
    """
    anything: Any = model
    head = anything.get_output_embeddings()
    layers = [path for path, module in model.named_modules() if type(module) is torch.nn.Linear and module is not head]
    if not layers:
        raise PolicyError("quantization: the model has no linear layer that can be quantized; remove the key")
    for path in layers:  # one at a time: never two models in full precision
        above, _, last = path.rpartition(".")
        owner = model.get_submodule(above)
        setattr(owner, last, QuantizedLinear(getattr(owner, last)))


def dequantize_linears(model: torch.nn.Module) -> None:
    """Replace all `QuantizedLinear` of a model by linear layers with the same weights in float32, in place."""
    for path in [path for path, module in model.named_modules() if isinstance(module, QuantizedLinear)]:
        above, _, last = path.rpartition(".")
        layer = model.get_submodule(path)
        assert isinstance(layer, QuantizedLinear)
        with torch.device("meta"):
            plain = torch.nn.Linear(layer.in_features, layer.out_features, bias=False)
        plain.weight = torch.nn.Parameter(layer.dequantize_weight(torch.float32), requires_grad=False)
        plain.bias = layer.bias
        setattr(model.get_submodule(above), last, plain)


def set_compute_dtype(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Set the data type in which the quantized layers of a model are computed."""
    for module in model.modules():
        if isinstance(module, QuantizedLinear):
            module.compute_dtype = dtype


def is_quantized(model: torch.nn.Module) -> bool:
    """Return whether a model has quantized layers."""
    return any(isinstance(module, QuantizedLinear) for module in model.modules())


def count_quantized(model: torch.nn.Module) -> int:
    """Return the number of weights in quantized layers."""
    layers = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
    return sum(layer.in_features * layer.out_features for layer in layers)


def _functional() -> Any:
    try:
        from bitsandbytes import functional
    except ImportError as error:
        raise PolicyError(f"quantization: nf4 needs bitsandbytes: {install_command('gpu')}") from error
    return functional
