"""The single compute thread of the process, which keeps the event loop free.

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
    """Call a function in the compute thread, and return its result.

    Calls run one after another, each in the context variables of its caller. Exceptions of the function propagate.

    Args:
        work: Function to call.
        args: Positional arguments of the function.
        kwargs: Keyword arguments of the function.
    """
    return await _submit(_run_other, work, *args, **kwargs)


async def run_engine_steps(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that runs engine steps in the compute thread, and return its result.

    Same as `run_in_compute_thread`, but settings from `restore_before_other_work` stay in effect.
    """
    return await _submit(_run_steps, work, *args, **kwargs)


def restore_before_other_work(restore: Callable[[], None]) -> bool:
    """Keep a setting of the compute thread until it runs anything other than engine steps.

    An engine calls this within `run_engine_steps` after it changed a setting, such as the number of threads.

    Args:
        restore: Function that restores the setting; called once, in the compute thread.

    Returns:
        False if the caller is not within `run_engine_steps`, so that the caller must restore the setting itself.
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
    """Return whether submitted work is unfinished.

    The interpreter waits for unfinished work at exit.
    """
    return bool(_unfinished)
