"""Deadlines of calls to untrusted code, and the component that an episode is waiting for.

`waiting_for` names the component, such as `tool Shop (open)`. `Waits` stores the names for one episode, so that an
error message and the watchdog name the same component. `limit_duration` and `finish_within` set a deadline.

Note:
    `limit_duration` runs its block in the caller's task: what `open` enters, such as a task group, `close` has to leave
    in the same task. A coroutine can ignore its cancellation, so `finish_within` runs it in a separate task and
    abandons that task if it does not end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from whetstone.cancellation import is_cancellation_requested, is_second_interrupt
from whetstone.errors import InfrastructureError, summarize_exception

T = TypeVar("T")
CLOSE_SECONDS = 30.0
"""Deadline in seconds for closing an environment, if the episode has no shorter one."""
BACKEND = "of the backend of a tool"
"""Part of the name of a wait that no policy can shorten: the rate limit of a tool, or the pause before a retry."""
_CANCEL_SECONDS = 1.0
"""Time in seconds that a cancelled coroutine may take to end."""


class DeadlinePassed(Exception):
    """Error of a wait that exceeded its deadline.

    Args:
        owner: Component that was waited for.
        seconds: Deadline in seconds.
    """

    def __init__(self, owner: str, seconds: float) -> None:
        super().__init__(f"{owner} did not finish within {seconds:g} s")
        self.owner, self.seconds = owner, seconds


class Waits:
    """Components that one episode is waiting for at this moment.

    The collector creates one object per episode, and the watchdog reads it.

    Args:
        advance: Callback after each wait ends.
    """

    def __init__(self, advance: Callable[[], None] = lambda: None) -> None:
        self._advance = advance
        self._entered: dict[object, tuple[int, str, float]] = {}
        """Depth, owner and start of each wait."""
        self.cut = ""
        """The innermost part whose wait was cancelled; empty once another wait starts."""

    def current_wait(self) -> tuple[str, float] | None:
        """Return (component that is waited for, start of the wait); None without a wait.

        Of nested waits the innermost one counts. Names of components that work in parallel are joined by commas. The
        start is a value of `time.perf_counter`.
        """
        waits = list(self._entered.values())
        depth = max((wait[0] for wait in waits), default=0)
        innermost = [wait for wait in waits if wait[0] == depth]
        if not innermost:
            return None
        return ", ".join(sorted({owner for _, owner, _ in innermost})), min(since for *_, since in innermost)

    @contextmanager
    def enter(self, owner: str, depth: int) -> Iterator[None]:
        """Record a wait for the duration of the block.

        Args:
            owner: Component that is waited for.
            depth: Number of enclosing waits.
        """
        key, self.cut = object(), ""
        self._entered[key] = (depth, owner, time.perf_counter())
        try:
            yield
        except asyncio.CancelledError:
            self.cut = self.cut or owner
            raise
        finally:
            del self._entered[key]
            self._advance()


_current: ContextVar[tuple[Waits, int] | None] = ContextVar("waits", default=None)
"""The waits of this episode, and how many enclose the code that runs."""


@contextmanager
def collect_waits(waits: Waits | None = None) -> Iterator[None]:
    """Record which components the block waits for.

    Args:
        waits: Object to record in; None: the object of the enclosing block, or a new one.
    """
    outer = _current.get()
    if waits is not None or outer is None:
        _current.set((waits or Waits(), 1))
    try:
        yield
    finally:
        _current.set(outer)  # `reset` fails if a generator is closed in another context


@contextmanager
def waiting_for(owner: str) -> Iterator[None]:
    """Record that the block waits for a component.

    Args:
        owner: Name of the component, such as `tool Shop (open)`.
    """
    outer = _current.get()
    if outer is None:
        yield
        return
    waits, depth = outer
    _current.set((waits, depth + 1))
    try:
        with waits.enter(owner, depth):
            yield
    finally:
        _current.set(outer)


@asynccontextmanager
async def limit_duration(seconds: float | None, *, owner: str) -> AsyncIterator[None]:
    """Limit the duration of a block, in the task that runs it.

    Args:
        seconds: Deadline in seconds; None: no deadline.
        owner: Component that the block waits for.

    Raises:
        DeadlinePassed: If the block exceeds the deadline; the error names the innermost component.
    """
    outer = _current.get()
    try:
        async with asyncio.timeout(seconds) as limit:
            with waiting_for(owner):
                yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlinePassed(outer[0].cut if outer is not None else owner, seconds or 0.0) from None


async def finish_within(
    seconds: float | None, work: Coroutine[Any, Any, T], *, owner: str, patience: float = _CANCEL_SECONDS
) -> T:
    """Run a coroutine with a deadline, and return its result.

    At the deadline the coroutine is cancelled; if it does not end, it is abandoned. A deadline that passes inside the
    coroutine is raised as an `InfrastructureError`.

    Args:
        seconds: Deadline in seconds; None: no deadline.
        work: Coroutine; it runs in a separate task with a copy of the context.
        owner: Component that is waited for.
        patience: Time in seconds that the coroutine may take to end after it is cancelled.

    Raises:
        DeadlinePassed: If the coroutine exceeds the deadline; the error names the innermost component.
    """
    with waiting_for(owner):
        task = asyncio.ensure_future(_capture(work))
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            await _cancel(task, patience)
            raise
        if not done:
            outer = _current.get()
            innermost = outer[0].current_wait() if outer is not None else None
            await _cancel(task, patience)
            raise DeadlinePassed(innermost[0] if innermost is not None else owner, seconds or 0.0)
    result, error = task.result()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


async def close_within(seconds: float, work: Coroutine[Any, Any, Any], *, owner: str) -> str:
    """Close a component with a deadline, and report a failure instead of raising it.

    Args:
        seconds: Deadline in seconds.
        work: Coroutine that closes the component.
        owner: Component that is closed.

    Returns:
        The failure on one line; empty if there is none.
    """
    try:
        async with limit_duration(seconds, owner=owner):
            await work
        return ""
    except asyncio.CancelledError:
        if is_cancellation_requested():
            raise
        failure = f"{owner}: CancelledError without a cancellation"
    except DeadlinePassed as error:
        failure = str(error)
    except (Exception, SystemExit) as error:
        failure = f"{owner}: {summarize_exception(error)}"
    asyncio.get_running_loop().call_exception_handler({"message": f"not closed, the run continues: {failure}"})
    return failure


async def _capture(work: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
    """Return (result, exception) of a coroutine.

    A `SystemExit` that left a task would end the event loop.
    """
    try:
        return await work, None
    except DeadlinePassed as error:
        return None, InfrastructureError(str(error))
    except BaseException as error:  # untrusted code may raise anything
        if isinstance(error, asyncio.CancelledError) or is_second_interrupt(error):
            raise
        return None, error


async def _cancel(task: asyncio.Task[Any], patience: float) -> None:
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=patience)
    if not done:
        asyncio._unregister_task(task)  # otherwise `asyncio.run` waits for it at its end
        task._log_destroy_pending = False  # type: ignore[attr-defined]
