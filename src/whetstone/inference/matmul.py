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
    """Multiply [..., K] by the transpose of [N, K]: [..., N], in memory [N, ...].

    The bits of a token do not depend on the number of tokens (bfloat16, on x86 with PyTorch's own wheel).
    """
    product = weight @ inputs.reshape(-1, inputs.shape[-1]).t()
    return product.t().view(*inputs.shape[:-1], len(weight))


class TransposedLinear(torch.nn.Linear):
    """Linear layer with a transposed product."""

    def forward(self, input: Tensor) -> Tensor:
        """Map [..., K] to [..., N]."""
        product = transposed_matmul(input, self.weight)
        return product if self.bias is None else product + self.bias


def transpose_linears(model: torch.nn.Module) -> None:
    """Transpose the products of all plain linear layers of a model, including those with adapters."""
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.__class__ = TransposedLinear


def matmul_is_batch_invariant() -> bool:
    """Return whether a row of a matrix product has the same bits for any number of rows (float32, CPU).

    The rules of `forward.py` require it. PyTorch's library for x86 processors has this property from 16 rows on.
    """
    generator = torch.Generator().manual_seed(0)
    weight, inputs = torch.randn(96, 128, generator=generator), torch.randn(256, 128, generator=generator)
    full = torch.nn.functional.linear(inputs, weight)
    counts = (16, 17, 20, 33, 64, 100)
    return all(torch.equal(torch.nn.functional.linear(inputs[:n], weight), full[:n]) for n in counts)
