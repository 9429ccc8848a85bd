"""Transposed matrix products for few tokens in bfloat16 on a CPU: weights first, tokens as columns.

The bfloat16 library packs its second factor again in every product. If that is the weight matrix, packing takes as long
as multiplying: with 64 tokens the transposed product is 1.9 times as fast, with 1,000 equally fast.

Note:
    The output is stored column by column, so its rows are not contiguous.
"""

from __future__ import annotations

import torch
from torch import Tensor


def transposed_matmul(inputs: Tensor, weight: Tensor) -> Tensor:
    """Multiply [..., K] inputs by the transpose of a [N, K] weight, with the tokens as columns.

    The bits of a token do not depend on the number of tokens (bfloat16, on x86 with PyTorch's own wheel).

    Returns:
        [..., N] product, which is [N, ...] in memory.
    """
    product = weight @ inputs.reshape(-1, inputs.shape[-1]).t()
    return product.t().view(*inputs.shape[:-1], len(weight))


class TransposedLinear(torch.nn.Linear):
    """Linear layer that computes its product by `transposed_matmul`."""

    def forward(self, input: Tensor) -> Tensor:
        """Map [..., K] inputs to [..., N]."""
        product = transposed_matmul(input, self.weight)
        return product if self.bias is None else product + self.bias


def transpose_linears(model: torch.nn.Module) -> None:
    """Replace all plain linear layers of a model by `TransposedLinear`, in place.

    The base layers inside adapters are included. Weights are not copied.
    """
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.__class__ = TransposedLinear


def matmul_is_batch_invariant() -> bool:
    """Return whether matrix products are batch-invariant (float32, CPU).

    The rules of `forward.py` require it. PyTorch's library for x86 processors has this property from 16 rows on.
    """
    generator = torch.Generator().manual_seed(0)
    weight, inputs = torch.randn(96, 128, generator=generator), torch.randn(256, 128, generator=generator)
    full = torch.nn.functional.linear(inputs, weight)
    counts = (16, 17, 20, 33, 64, 100)
    return all(torch.equal(torch.nn.functional.linear(inputs[:n], weight), full[:n]) for n in counts)
