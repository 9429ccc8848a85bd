"""Thread pool for plain (not async) functions of users: daemon threads, as many as there are blocking calls.

An async function runs on the event loop and a plain one in a thread, at every stage of an episode, so that one that
blocks delays only its own episode. `call_user_function` chooses.

Context variables: a thread has those of its caller, and a variable set in the thread is set for the caller.

Number of threads: a function of some microseconds ends before a second thread is awake, so one thread runs the calls of
hundreds of episodes. If all threads are busy and a call has waited for `GROWTH_SECONDS`, the number of threads doubles,
at most up to one thread per waiting call. The number therefore follows the functions that block. Results that are ready
at the same time reach the event loop together.

Note:
    The standard pool waits for its threads when the process ends, so a function that hangs keeps the process; and its
    size is fixed, so enough functions that hang, or that wait for other calls, stop all others. Here the number of
    threads is not limited.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from queue import SimpleQueue
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from whetstone.errors import summarize_exception

_Work = Callable[[], None]

GROWTH_SECONDS = 0.01
"""Time in seconds that a call waits for a busy pool before more threads start."""


class _Pool:
    """Pool of daemon threads that take calls from one queue.

    It grows with the number of blocking calls.
    """

    def __init__(self) -> None:
        self._calls: deque[tuple[float, _Work]] = deque()
        """Queued calls, each with the time at which it was queued."""
        self._available: SimpleQueue[None] = SimpleQueue()
        """Queue with one item per queued call; a thread that takes an item runs the oldest call."""
        self._idle: list[None] = []
        """List with one item per idle thread; appending and popping are atomic."""
        self._num_threads = 0
        self._growing: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        """Event loops with a pending timer for `_grow`."""
        self._lock = threading.Lock()

    def submit(self, work: _Work) -> None:
        """Queue a call to run in a thread; called on an event loop."""
        self._calls.append((time.monotonic(), work))
        self._available.put(None)
        if not self._num_threads:
            self._start(1)
        self._watch(asyncio.get_running_loop())

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop not in self._growing:
            self._growing.add(loop)
            loop.call_later(GROWTH_SECONDS, self._grow, loop)

    def _grow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Double the number of threads if all are busy and the oldest call has waited too long."""
        self._growing.discard(loop)
        try:
            since, _ = self._calls[0]
        except IndexError:
            return
        if not self._idle and time.monotonic() - since >= GROWTH_SECONDS:
            self._start(min(len(self._calls), self._num_threads))
        self._watch(loop)

    def _start(self, count: int) -> None:
        for _ in range(count):
            threading.Thread(target=self._serve, name="tool", daemon=True).start()
            with self._lock:
                self._num_threads += 1

    def _serve(self) -> None:
        while True:
            self._idle.append(None)
            self._available.get()
            self._idle.pop()
            _, work = self._calls.popleft()
            work()
            del work


class _Results:
    """Results of thread calls for one event loop, which wakes up once for all results that are ready."""

    def __init__(self) -> None:
        self._ready: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_scheduled = False

    def add(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        """Schedule a result or an exception for a future on its event loop; called in any thread."""
        self._ready.append((future, result, error))
        if not self._is_scheduled:
            self._is_scheduled = True
            with suppress(RuntimeError):  # the event loop is closed
                future.get_loop().call_soon_threadsafe(self._set)

    def _set(self) -> None:
        self._is_scheduled = False
        while self._ready:
            future, result, error = self._ready.popleft()
            if future.cancelled():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


_pool = _Pool()
_results: WeakKeyDictionary[asyncio.AbstractEventLoop, _Results] = WeakKeyDictionary()
_single = threading.Lock()
_single_inbox: SimpleQueue[_Work] | None = None
"""Queue of the single thread for tools that are not thread-safe; None: the thread is not started."""
_uses_single: contextvars.ContextVar[bool] = contextvars.ContextVar("uses_single", default=False)
_single_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


def with_result(call: Callable[[], Any]) -> tuple[_Work, asyncio.Future[Any]]:
    """Return a function that runs a call in any thread, and the future that receives its result or exception here."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    results = _results.get(loop)
    if results is None:
        results = _results.setdefault(loop, _Results())

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
        results.add(future, result, failure)

    return work, future


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function, or the `__call__` of an object, is a coroutine function."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _carry(error: BaseException) -> RuntimeError:
    """Return a `RuntimeError` with the text and traceback of an exception that a future cannot carry."""
    return RuntimeError(summarize_exception(error)).with_traceback(error.__traceback__)


async def call_user_function(function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
    """Call a function of a user: an async one on the event loop, a plain one in a thread.

    If a plain function returns an awaitable, its result is awaited here.
    """
    if is_async(function):
        return await function(*arguments, **options)
    result = await run_in_thread(function, *arguments, **options)
    return await result if inspect.isawaitable(result) else result


async def run_in_turn(function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
    """Call a function of a task source as `call_user_function` does, but one call at a time.

    All episodes share the source, which need not be thread-safe.
    """
    turn = _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    async with turn:
        return await call_user_function(function, *arguments, **options)


@asynccontextmanager
async def turn_of_single_thread(is_restricted: bool = True) -> AsyncIterator[None]:
    """Context manager that runs the plain functions of its block in the single thread of the process.

    Blocks of an event loop run one after another.

    Args:
        is_restricted: Whether to use the single thread; with False, the context manager does nothing.
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
    """Call a plain function in the single thread of the process, block until it returns, and return its result."""
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
    """Run a plain function in a thread and return its result.

    If the caller is cancelled, the function continues and its result is dropped.
    """
    context = contextvars.copy_context()
    work, future = with_result(lambda: context.run(function, *arguments, **options))
    if _uses_single.get():
        _put_in_single_thread(work)
    else:
        _pool.submit(work)
    try:
        return await future
    finally:
        if not future.cancelled():
            _adopt(context)


def _adopt(context: contextvars.Context) -> None:
    """Set the context variables of the caller to the values that a thread has set."""
    current = contextvars.copy_context()
    for variable, value in context.items():
        if variable not in current or current[variable] is not value:
            variable.set(value)


def _serve_alone(inbox: SimpleQueue[_Work]) -> None:
    while True:
        inbox.get()()
