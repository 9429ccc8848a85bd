"""Threads for plain functions of users: daemon threads, reused when they are free.

An async function runs on the event loop and a plain one in a thread, at every stage of an episode, so that one that
blocks delays only its own episode. `call_user_function` chooses.

Context variables: a thread has those of its caller, and a variable set in the thread is set for the caller.

Note:
    The standard pool waits for its threads when the process ends, so a function that hangs keeps the process; and its
    size is fixed, so enough functions that hang stop all others. Here a new thread starts if none is free.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from queue import SimpleQueue
from typing import Any
from weakref import WeakKeyDictionary

from whetstone.errors import explained

_Work = Callable[[], None]
_idle: list[SimpleQueue[_Work]] = []
"""The inboxes of threads with nothing to do; appending and popping are atomic."""
_single = threading.Lock()
_single_inbox: SimpleQueue[_Work] | None = None
"""The inbox of the single thread; None: it is not started."""
_uses_single: contextvars.ContextVar[bool] = contextvars.ContextVar("uses_single", default=False)
_single_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


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
            failure = _carry(error) if isinstance(error, StopIteration) else error
        except BaseException as error:  # in another thread it would stop the program, or look like a wish to stop it
            failure = _carry(error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, failure)

    return work, future


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling a function or an object gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _carry(error: BaseException) -> RuntimeError:
    """Return an exception that a future accepts, with the text and the traceback of another."""
    return RuntimeError(explained(error)).with_traceback(error.__traceback__)


async def call_user_function(function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
    """Call an async function here and a plain one in a thread; await the result of a plain one if it is awaitable."""
    if is_async(function):
        return await function(*arguments, **options)
    result = await run_in_thread(function, *arguments, **options)
    return await result if inspect.isawaitable(result) else result


async def run_in_turn(function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
    """Call a function of a task source: as `call_user_function`, but one after another.

    All episodes share the source, which need not be made for several threads.
    """
    turn = _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    async with turn:
        return await call_user_function(function, *arguments, **options)


@asynccontextmanager
async def turn_of_single_thread(is_restricted: bool = True) -> AsyncIterator[None]:
    """Run the plain functions of the block in the single thread of the process, after the blocks before it.

    Args:
        is_restricted: Whether to do so; otherwise any thread is used.
    """
    if not is_restricted:
        yield
        return
    turn = _single_turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    async with turn:
        token = _uses_single.set(True)
        try:
            yield
        finally:
            _uses_single.reset(token)


def call_in_single_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a plain function in the single thread of the process and wait for it."""
    done: Future[Any] = Future()

    def work() -> None:
        try:
            done.set_result(function(*arguments))
        except BaseException as error:
            done.set_exception(error)

    _put_in_single_thread(work)
    return done.result()


def _put_in_single_thread(work: _Work) -> None:
    global _single_inbox
    with _single:
        if _single_inbox is None:
            _single_inbox = SimpleQueue()
            threading.Thread(target=_serve_alone, args=(_single_inbox,), name="tools", daemon=True).start()
    _single_inbox.put(work)


async def run_in_thread(function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
    """Run a plain function in a thread and return its result. If the caller is cancelled, the function runs on."""
    context = contextvars.copy_context()
    work, future = answered(lambda: context.run(function, *arguments, **options))
    if _uses_single.get():
        _put_in_single_thread(work)
    else:
        _put_in_idle_thread(work)
    try:
        return await future
    finally:
        if not future.cancelled():
            _adopt(context)


def _put_in_idle_thread(work: _Work) -> None:
    try:
        inbox = _idle.pop()
    except IndexError:
        inbox = SimpleQueue()
        threading.Thread(target=_serve, args=(inbox,), name="tool", daemon=True).start()
    inbox.put(work)


def _adopt(context: contextvars.Context) -> None:
    """Set the variables here that the context has set."""
    current = contextvars.copy_context()
    for variable, value in context.items():
        if variable not in current or current[variable] is not value:
            variable.set(value)


def _serve(inbox: SimpleQueue[_Work]) -> None:
    while True:
        inbox.get()()
        _idle.append(inbox)


def _serve_alone(inbox: SimpleQueue[_Work]) -> None:
    while True:
        inbox.get()()
