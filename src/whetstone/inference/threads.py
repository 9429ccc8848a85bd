"""How many threads does a pass over rows take? One where it is short: others would be waited for longer than they help.

A decode step of a small model is some hundred products of a few microseconds, and each of them that is divided ends
with the slower thread. Beside other processes that is the one that was not given its core.

Easy to get wrong: a number of threads that decided the order of sums would decide the last bits of what is drawn. The
library PyTorch brings for x86 processors divides a product by rows and columns of what comes out, so it does not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

SHORT = 500_000_000
"""Multiplications of a pass, parameters times tokens, below which one thread computes it."""


@contextlib.contextmanager
def threads_for(multiplications: int) -> Iterator[None]:
    """One thread as long as the block lasts where there is little to compute; as many as there were where there is
    more."""
    before = torch.get_num_threads()
    if multiplications >= SHORT or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
