"""Which way round is a matrix product of few tokens quickest? The weights first, the tokens as columns.

The library that multiplies in bfloat16 on a CPU lays its second factor out anew in every product. Where that is the
weights, laying out takes as long as multiplying: 64 tokens are 1.9 times as fast the other way round, 1,000 the same.

Easy to get wrong: what comes out lies column by column, so a row of it is not in one piece.
"""

from __future__ import annotations

import torch
from torch import Tensor


def multiplied(inputs: Tensor, weight: Tensor) -> Tensor:
    """[…, K] times the transpose of [N, K]: […, N], in memory [N, …].

    A token's bits do not depend on how many there are (bfloat16, on x86 with PyTorch's own wheel).
    """
    product = weight @ inputs.reshape(-1, inputs.shape[-1]).t()
    return product.t().view(*inputs.shape[:-1], len(weight))


class WeightsFirst(torch.nn.Linear):
    """A linear layer whose product is the other way round."""

    def forward(self, input: Tensor) -> Tensor:
        """[…, K] → […, N]"""
        product = multiplied(input, self.weight)
        return product if self.bias is None else product + self.bias


def put_weights_first(model: torch.nn.Module) -> None:
    """Turn the products of a model's plain linear layers, those that adapters stand beside among them."""
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.__class__ = WeightsFirst


def matmul_is_batch_invariant() -> bool:
    """Return whether a row of a matrix product has the same bits for any number of rows (float32, CPU).

    The rules of `forward.py` require it. PyTorch's library for x86 processors has this property from 16 rows on.
    """
    generator = torch.Generator().manual_seed(0)
    weight, inputs = torch.randn(96, 128, generator=generator), torch.randn(256, 128, generator=generator)
    full = torch.nn.functional.linear(inputs, weight)
    counts = (16, 17, 20, 33, 64, 100)
    return all(torch.equal(torch.nn.functional.linear(inputs[:n], weight), full[:n]) for n in counts)
