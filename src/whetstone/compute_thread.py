"""Which thread does the arithmetic? One for the whole process, so that the event loop is free meanwhile.

Easy to get wrong: every thread that multiplies matrices brings a pool of helpers of its own. With two pools on
the same cores OpenMP no longer lets helpers wait awake, and sampling and learning each take twice as long
(measured on two cores). So engines and learners take turns here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_THREAD = ThreadPoolExecutor(1, thread_name_prefix="arithmetic")
_unfinished: set[Future[Any]] = set()


async def run_in_compute_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns or raises, called where all arithmetic is done; others run meanwhile."""
    future = _THREAD.submit(partial(work, *args, **kwargs))
    _unfinished.add(future)
    future.add_done_callback(_unfinished.discard)
    return await asyncio.wrap_future(future)


def is_computing() -> bool:
    """Return whether submitted work is unfinished; the interpreter waits for it at exit."""
    return bool(_unfinished)
