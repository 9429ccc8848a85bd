"""The one thread of the process that computes, so that the event loop stays free.

Note:
    Every thread that multiplies matrices has its own pool of OpenMP threads. With two pools on the same cores
    OpenMP no longer lets its threads wait actively, and sampling and learning each take twice as long (measured on two
    cores). Engines and learners therefore take turns in this thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_NAME = "arithmetic"
_THREAD = ThreadPoolExecutor(1, thread_name_prefix=_NAME)
_unfinished: set[Future[Any]] = set()


_restore: Callable[[], None] | None = None
_runs_engine_steps = False


async def run_in_compute_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `work` in the compute thread, in the caller's context, and return its result.

    Exceptions propagate.

    Calls run one after another.
    """
    return await _submit(_run_other, work, *args, **kwargs)


async def run_engine_steps(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Same as `run_in_compute_thread`, for the steps of an engine: see `restore_before_other_work`."""
    return await _submit(_run_steps, work, *args, **kwargs)


def restore_before_other_work(restore: Callable[[], None]) -> bool:
    """Keep a setting of the compute thread between the steps of engines.

    Args:
        restore: Called once, in the compute thread, before it runs anything other than the steps of an engine.

    Returns:
        False if the caller is not within `run_engine_steps`; the caller must restore the setting itself.
    """
    global _restore
    if not _runs_engine_steps or not threading.current_thread().name.startswith(_NAME):
        return False
    _restore = restore
    return True


async def _submit(run: Callable[..., Any], work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    future: Future[T] = _THREAD.submit(copy_context().run, run, partial(work, *args, **kwargs))
    _unfinished.add(future)
    future.add_done_callback(_unfinished.discard)
    return await asyncio.wrap_future(future)


def _run_other(call: Callable[[], T]) -> T:
    global _restore
    if _restore is not None:
        restore, _restore = _restore, None
        restore()
    return call()


def _run_steps(call: Callable[[], T]) -> T:
    global _runs_engine_steps
    _runs_engine_steps = True
    try:
        return call()
    finally:
        _runs_engine_steps = False


def is_computing() -> bool:
    """Return whether submitted work is unfinished; the interpreter waits for it at exit."""
    return bool(_unfinished)
