"""How many threads does a short pass take? One, or all of them: whichever is quicker at the moment, which is tried.

A decode step of a small model is some hundred products of a few microseconds, and each of them that is divided ends
with the slower thread. On a quiet machine all threads are a little quicker; beside other processes the slower thread is
the one that was not given its core, and one alone is many times as fast.

Easy to get wrong: a number of threads that decided the order of sums would decide the last bits of what is drawn, and
how busy the machine is would show in a run's weights. Whether it does is looked at first; where it does, all threads
compute every pass.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

SHORT = 500_000_000
"""Multiplications of a pass, parameters times tokens, from which on all threads compute it."""
_SMALL = 2**18
"""Numbers of a tensor that one thread is through with before another is awake."""
_TRIED = (True, False) * 3
"""Whether one thread computes it, of the passes of a trial."""
_SHARE = 20.0
"""Between two trials there is so many times as long as the one before took."""


class ThreadChoice:
    """One thread or all of them, for the short passes of a model.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.one = True
        """Whether one computes the passes at the moment."""
        self._trial: list[bool] = []
        self._seconds = {True: 0.0, False: 0.0}
        self._due = clock()

    @contextlib.contextmanager
    def threads(self, multiplications: int, *, tried: bool) -> Iterator[None]:
        """As many as are quickest, as long as the block lasts.

        Args:
            tried: Whether this pass is like those before and behind it, so that they can be compared.
        """
        there = torch.get_num_threads()
        if multiplications >= SHORT or there == 1 or not sums_alike(there):
            yield
            return
        began = self._clock()
        if tried and not self._trial and began >= self._due:
            self._trial, self._seconds = list(_TRIED), {True: 0.0, False: 0.0}
        one = self._trial[0] if tried and self._trial else self.one
        if one:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if one:
                torch.set_num_threads(there)
        if tried and self._trial:
            self._hear(self._clock() - began)

    def _hear(self, took: float) -> None:
        """How long a pass of a trial took; behind the last of them the quicker is chosen."""
        self._seconds[self._trial.pop(0)] += took
        if not self._trial:
            self.one = self._seconds[True] <= self._seconds[False]
            self._due = self._clock() + _SHARE * sum(self._seconds.values())


class Shares:
    """Products by all threads and what lies between them by one, in a pass whose tensors are small.

    A thread that waits for longer than a few microseconds sleeps, and waking it takes longer than half of a small
    tensor's norm or sum. SmolLM2 with 64 rows has some seven hundred of those a pass, and two hundred products.

    Args:
        numbers: Of the largest tensor between products.
    """

    def __init__(self, numbers: int) -> None:
        self._there = torch.get_num_threads()
        self._few = 1 if numbers < _SMALL else self._there

    @contextlib.contextmanager
    def between(self) -> Iterator[None]:
        """One, as long as the block lasts, but for the products in it."""
        torch.set_num_threads(self._few)
        try:
            yield
        finally:
            torch.set_num_threads(self._there)

    @contextlib.contextmanager
    def product(self) -> Iterator[None]:
        """All of them, as long as the block lasts."""
        torch.set_num_threads(self._there)
        yield
        torch.set_num_threads(self._few)


@functools.cache
def sums_alike(count: int) -> bool:
    """Whether so many threads give products and attention the bits that one gives them (float32). The libraries
    PyTorch brings for x86 processors divide what comes out, not what is summed."""
    numbers = torch.Generator().manual_seed(0)
    inputs, weight = torch.randn(64, 256, generator=numbers), torch.randn(384, 256, generator=numbers)
    keys = torch.randn(16, 4, 192, 32, generator=numbers)
    found = []
    before = torch.get_num_threads()
    for threads in (1, count):
        torch.set_num_threads(threads)
        mixed = scaled_dot_product_attention(keys[:, :, :4], keys, keys)
        found.append((linear(inputs, weight), mixed, keys[:, :, :1] @ keys.transpose(-1, -2)))
    torch.set_num_threads(before)
    return all(torch.equal(one, other) for one, other in zip(*found, strict=True))
