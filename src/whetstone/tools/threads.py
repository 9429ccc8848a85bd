"""Where does a plain function run so that it can hang without harm? In a daemon thread, used again when it is free.

Easy to get wrong: the standard pool is joined when the process ends, so one hung function and it never does;
and its size is fixed, so enough hung ones and nothing runs any more. Here a new thread is made when none is free.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from whetstone.errors import explained

_Work = Callable[[], None]
_idle: list[SimpleQueue[_Work]] = []
"""The inboxes of threads with nothing to do; appending and popping are atomic."""


def answered(call: Callable[[], Any]) -> tuple[Callable[[], None], asyncio.Future[Any]]:
    """(work for some thread, what comes of it here): the future has what the call returns or raises there."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result: Any = None
        failure: BaseException | None = None
        try:
            result = call()
        except Exception as error:
            # a future refuses to carry the first
            failure = RuntimeError(explained(error)) if isinstance(error, StopIteration) else error
        except BaseException as error:  # in another thread it would stop the program, or look like a wish to stop it
            failure = RuntimeError(explained(error))
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, failure)

    return work, future


async def run_in_thread(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """What a plain function returns or raises. When the caller gives up, the function is left to itself."""
    work, future = answered(lambda: function(**arguments))
    try:
        inbox = _idle.pop()
    except IndexError:
        inbox = SimpleQueue()
        threading.Thread(target=_serve, args=(inbox,), name="tool", daemon=True).start()
    inbox.put(work)
    return await future


def _serve(inbox: SimpleQueue[_Work]) -> None:
    while True:
        inbox.get()()
        _idle.append(inbox)
