"""Server-sent events of a streamed answer, and cancellation of sampling when the client disconnects.

Note:
    If a client disconnects, sampling must stop. Every write is a system call, which costs more than the token it
    carries, so that all available pieces are sent together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from whetstone.chat.api.protocol import Stream
from whetstone.chat.api.requests import CompletionResponse, RefusedError

Shows = tuple[Callable[[str], None], ...]
"""One callback per answer for each piece of text to send."""
Answering = Callable[[Shows, Callable[[int], None]], Awaitable[list[CompletionResponse]]]
"""Function (callbacks for text, callback for the number of prompt tokens) → answers."""


class EventStream:
    """Server-sent events of one request, as an ASGI response; sampling stops when the client disconnects.

    Args:
        count: Number of requested answers.
        answering: Samples them.
        on_complete: Receives the answers when all are complete.
    """

    def __init__(
        self,
        count: int,
        answering: Answering,
        stream: Stream,
        on_complete: Callable[[list[CompletionResponse]], object],
        headers: Mapping[str, str],
    ) -> None:
        self._count, self._stream, self._on_complete = count, stream, on_complete
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._pieces: list[tuple[int, str]] = []
        self._has_news, self._prompt_tokens, self._opened = asyncio.Event(), 0, False
        self._sampling = asyncio.ensure_future(
            answering(tuple(partial(self._show, n) for n in range(count)), self._set_prompt_tokens)
        )
        self._sampling.add_done_callback(lambda _: self._has_news.set())
        self._watcher: asyncio.Future[None]
        self._is_disconnected = False

    async def begin(self, receive: Any) -> EventStream:
        """Start sampling and wait for the first event, so that a rejected request gets an HTTP error status.

        Args:
            receive: See ASGI.

        Raises:
            RefusedError: The request is rejected, or the client disconnected.
        """
        self._watcher = asyncio.ensure_future(self._watch(receive))
        try:
            await self._has_news.wait()
            if self._sampling.done():
                self._sampling.result()
        except BaseException as error:
            self._sampling.cancel()
            self._watcher.cancel()
            if isinstance(error, asyncio.CancelledError) and self._is_disconnected:
                raise _disconnected_error() from None
            raise
        return self

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the events to the client until all answers are complete (ASGI interface)."""
        try:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), *self._headers]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for events, has_more in self._iterate_events():
                await send({"type": "http.response.body", "body": events.encode(), "more_body": has_more})
        finally:
            self._sampling.cancel()
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher

    async def _iterate_events(self) -> AsyncIterator[tuple[str, bool]]:
        """Yield (text of one or more server-sent events, whether more events follow)."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            is_last = self._sampling.done()
            events = "".join(self._take_pending())
            if is_last:
                yield events + "".join(self._final_events()), False
                return
            yield events, True

    def _take_pending(self) -> list[str]:
        lines: list[str] = []
        if not self._opened:
            self._opened = True
            lines += self._stream.write_start(self._count, self._prompt_tokens)
        pieces, self._pieces = self._pieces, []
        for number, text in pieces:
            lines += self._stream.write_text(number, text)
        return lines

    def _final_events(self) -> list[str]:
        try:
            answers = self._sampling.result()
        except asyncio.CancelledError:  # the client disconnected
            return []
        except RefusedError as error:  # the status is sent already
            return [self._stream.write_error(error)]
        self._on_complete(answers)
        return list(self._stream.write_end(answers))

    def _show(self, number: int, text: str) -> None:
        self._pieces.append((number, text))
        self._has_news.set()

    def _set_prompt_tokens(self, tokens: int) -> None:
        self._prompt_tokens = tokens

    async def _watch(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._is_disconnected = True
        self._sampling.cancel()


async def run_until_disconnect(request: Any, work: Awaitable[list[CompletionResponse]]) -> list[CompletionResponse]:
    """Return the answers unless the client disconnects; then cancel the work.

    Raises:
        RefusedError: The client disconnected.
    """
    task = asyncio.ensure_future(work)

    async def cancel_on_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        task.cancel()

    watcher = asyncio.ensure_future(cancel_on_disconnect())
    try:
        return list(await task)
    except asyncio.CancelledError:
        raise _disconnected_error() from None
    finally:
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher


def _disconnected_error() -> RefusedError:
    return RefusedError("the client closed the request", status=499)
