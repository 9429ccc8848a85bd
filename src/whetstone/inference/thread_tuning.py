"""Number of threads of a short forward pass: one or all, whichever is faster at the moment.

A decode step of a small model is some hundred matrix products of a few microseconds each. A product that is divided
among threads ends with the slowest thread. On an idle machine all threads are a little faster; if other processes use
the cores, one thread is many times as fast as all of them. A short trial decides between the two.

Note:
    If the number of threads changed the order of sums, the load of the machine would change the sampled tokens.
    `matmul_is_thread_invariant` tests this first; if the bits differ, all threads compute every forward pass.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from whetstone.compute_thread import restore_before_other_work

SHORT = 500_000_000
"""Number of multiplications of a forward pass (parameters times tokens) from which on all threads compute it."""
_SMALL = 2**18
"""Number of elements of a tensor that one thread finishes before a second thread is awake."""
GRAIN = 2**15
"""Number of elements from which on PyTorch divides an elementwise operation or a reduction among threads."""
_TRIAL = ((True, False), (True, True), (True, True), (False, False), (False, True), (False, True)) * 2
"""(one thread, timed) of each forward pass of a trial. The first pass after a change creates or ends threads."""
_MIN_TIMED = 2
"""Number of timed forward passes with one thread after which a trial can end."""
_PREEMPTED = 1.25
"""Ratio of elapsed to processor time of one thread at which a trial ends early: other processes use the cores."""
_INTERVAL, _ONE_INTERVAL, _PREEMPTED_INTERVAL = 20.0, 8.0, 4.0
"""Seconds until the next trial, as a multiple of the duration of the last one: if it chose all threads, if it chose
one, and if it ended early, which costs nothing. Other processes are the usual reason for one thread, and they end."""
_SLOWER, _PASSES = 1.5, 4
"""Number of consecutive forward passes of all threads, slower than in the trial by this factor, after which the next
trial starts."""
_MUCH_SLOWER = 4.0
"""The same for a single forward pass, and in a trial the ratio to one thread at which all threads are given up."""
_SIMILAR = 1.25
"""Ratio of multiplications up to which the durations of two forward passes are compared."""


class ThreadChoice:
    """Chooses between one thread and all threads for the short forward passes of a model.

    Created by `SlotForward`. Trials of both numbers are repeated at intervals, since the load of the machine changes.

    Args:
        clock: Returns the elapsed time in seconds.
        thread_clock: Returns the processor time of the calling thread in seconds.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, thread_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._thread_clock = clock, thread_clock
        self.one = True
        """Whether one thread computes short forward passes at the moment."""
        self._trial: list[tuple[bool, bool]] = []
        self._seconds: dict[bool, list[float]] = {True: [], False: []}
        self._processor_seconds = 0.0
        self._began = self._due = clock()
        self._expected: tuple[int, float] | None = None
        self._slower = 0

    @contextlib.contextmanager
    def limit_threads(self, multiplications: int, *, tried: bool) -> Iterator[None]:
        """Set the number of threads of a forward pass for the duration of the block.

        In an engine's steps (`compute_thread.run_engine_steps`) one thread stays set after the block until all threads
        are needed: OpenMP ends its threads when the number falls and creates them again when it rises.

        Args:
            multiplications: Number of parameters times number of tokens of the forward pass.
            tried: Whether the forward pass resembles those before and after it, so that a trial can compare their
                durations.
        """
        total = _all_threads()
        if multiplications >= SHORT or total == 1 or not matmul_is_thread_invariant(total):
            restore_threads()
            yield
            return
        began, processor = self._clock(), self._thread_clock()
        if tried and not self._trial and began >= self._due:
            self._trial, self._seconds, self._processor_seconds = list(_TRIAL), {True: [], False: []}, 0.0
            self._began = began
        one = self._trial[0][0] if tried and self._trial else self.one
        _set_threads(1 if one else total, total)
        try:
            yield
        finally:
            if not restore_before_other_work(restore_threads):
                restore_threads()
        if tried:
            self._record(multiplications, self._clock() - began, self._thread_clock() - processor)

    def _record(self, multiplications: int, seconds: float, processor_seconds: float) -> None:
        """Record the duration of a forward pass; at the end of a trial, choose the faster number of threads."""
        if not self._trial:
            self._compare(multiplications, seconds)
            return
        one, is_timed = self._trial.pop(0)
        if is_timed:
            self._seconds[one].append(seconds)
            self._processor_seconds += one * processor_seconds
        elapsed, count = sum(self._seconds[True]), len(self._seconds[True])
        is_preempted = count >= _MIN_TIMED and elapsed > _PREEMPTED * self._processor_seconds
        is_preempted |= not one and seconds * count > _MUCH_SLOWER * elapsed
        if self._trial and not is_preempted:
            return
        self._trial = []
        self.one = is_preempted or elapsed <= sum(self._seconds[False])
        used = self._seconds[self.one]
        self._expected, self._slower = (multiplications, sum(used) / len(used)), 0
        now = self._clock()
        interval = _PREEMPTED_INTERVAL if is_preempted else _ONE_INTERVAL if self.one else _INTERVAL
        self._due = now + interval * (now - self._began)

    def _compare(self, multiplications: int, seconds: float) -> None:
        """Start the next trial early if forward passes of all threads take longer than in the last trial."""
        if self.one or self._expected is None:
            return
        compared, expected = self._expected
        if compared / _SIMILAR <= multiplications <= compared * _SIMILAR:
            self._slower = self._slower + 1 if seconds > _SLOWER * expected else 0
            if self._slower >= _PASSES or seconds > _MUCH_SLOWER * expected:
                self._due = self._clock()


_reduced_from: int | None = None
"""Number of threads before it was reduced to one; None: all threads are set."""


def _all_threads() -> int:
    return _reduced_from or torch.get_num_threads()


def _set_threads(count: int, total: int) -> None:
    global _reduced_from
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
    _reduced_from = total if count < total else None


def restore_threads() -> None:
    """Set all threads again if a forward pass has left one thread set."""
    if _reduced_from is not None:
        _set_threads(_reduced_from, _reduced_from)


class ProductThreads:
    """Uses one thread between matrix products and all threads in them, if tensors are small.

    Every parallel operation wakes all threads, which takes longer than half of a small tensor's norm or sum. A forward
    pass of SmolLM2 with 64 slots has about seven hundred such operations and two hundred products.

    Args:
        numbers: Number of elements of the largest tensor between products.
    """

    def __init__(self, numbers: int) -> None:
        self._there = torch.get_num_threads()
        self._few = 1 if numbers < _SMALL else self._there

    @contextlib.contextmanager
    def reduce_threads(self) -> Iterator[None]:
        """Use one thread within the block, except inside `use_all_threads`.

        If tensors are large, all threads stay in use.
        """
        torch.set_num_threads(self._few)
        try:
            yield
        finally:
            torch.set_num_threads(self._there)

    @contextlib.contextmanager
    def use_all_threads(self) -> Iterator[None]:
        """Use all threads within the block, for a matrix product or attention."""
        torch.set_num_threads(self._there)
        yield
        torch.set_num_threads(self._few)


@functools.cache
def matmul_is_thread_invariant(count: int) -> bool:
    """Return whether `count` threads give products and attention the same bits as one thread (float32).

    The libraries of PyTorch for x86 processors divide the output among threads, not the sum. The result is cached.
    """
    numbers = torch.Generator().manual_seed(0)
    inputs, weight = torch.randn(64, 256, generator=numbers), torch.randn(384, 256, generator=numbers)
    keys = torch.randn(16, 4, 192, 32, generator=numbers)
    results = []
    before = torch.get_num_threads()
    for threads in (1, count):
        torch.set_num_threads(threads)
        mixed = scaled_dot_product_attention(keys[:, :, :4], keys, keys)
        results.append((linear(inputs, weight), mixed, keys[:, :, :1] @ keys.transpose(-1, -2)))
    torch.set_num_threads(before)
    return all(torch.equal(one, other) for one, other in zip(*results, strict=True))
