"""How does an answer reach its client while it is drawn, and what becomes of it where nobody listens any more?

Easy to get wrong: who hangs up must not leave his answer being drawn; and every write is a call of the system, which
costs more than the token it carries. What is there at once goes out at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from whetstone.chat.api.asked import Answer, RefusedError
from whetstone.chat.api.protocol import Stream

Shows = tuple[Callable[[str], None], ...]
"""Of each answer: told of each piece of it that may be shown."""
Answering = Callable[[Shows, Callable[[int], None]], Awaitable[list[Answer]]]
"""(shows, what is told how many tokens the answers are drawn behind) → the answers."""


class EventStream:
    """The events of one request, as an ASGI application. Whoever stops listening stops the drawing.

    Args:
        count: How many answers were asked for.
        answering: Draws them.
        over: Given the answers when all are there.
    """

    def __init__(
        self,
        count: int,
        answering: Answering,
        stream: Stream,
        over: Callable[[list[Answer]], object],
        headers: Mapping[str, str],
    ) -> None:
        self._count, self._stream, self._over = count, stream, over
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._pieces: list[tuple[int, str]] = []
        self._news, self._prompt_tokens, self._opened = asyncio.Event(), 0, False
        self._drawing = asyncio.ensure_future(
            answering(tuple(partial(self._show, n) for n in range(count)), self._begun)
        )
        self._drawing.add_done_callback(lambda _: self._news.set())
        self._watching: asyncio.Future[None]
        self._gone = False

    async def begin(self, receive: Any) -> EventStream:
        """Wait until there is something to tell, so that what is refused has a status of its own.

        Args:
            receive: See ASGI.

        Raises:
            RefusedError: Nothing is answered, or nobody listens any more.
        """
        self._watching = asyncio.ensure_future(self._watch(receive))
        try:
            await self._news.wait()
            if self._drawing.done():
                self._drawing.result()
        except BaseException as error:
            self._drawing.cancel()
            self._watching.cancel()
            if isinstance(error, asyncio.CancelledError) and self._gone:
                raise _gone() from None
            raise
        return self

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """See ASGI."""
        try:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), *self._headers]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for told, more in self._told():
                await send({"type": "http.response.body", "body": told.encode(), "more_body": more})
        finally:
            self._drawing.cancel()
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching

    async def _told(self) -> AsyncIterator[tuple[str, bool]]:
        """(events, whether more will come)"""
        while True:
            await self._news.wait()
            self._news.clear()
            over = self._drawing.done()
            told = "".join(self._some())
            if over:
                yield told + "".join(self._ended()), False
                return
            yield told, True

    def _some(self) -> list[str]:
        lines: list[str] = []
        if not self._opened:
            self._opened = True
            lines += self._stream.opened(self._count, self._prompt_tokens)
        pieces, self._pieces = self._pieces, []
        for number, text in pieces:
            lines += self._stream.more(number, text)
        return lines

    def _ended(self) -> list[str]:
        try:
            answers = self._drawing.result()
        except asyncio.CancelledError:  # nobody listens
            return []
        except RefusedError as error:  # the status is sent already
            return [self._stream.failed(error)]
        self._over(answers)
        return list(self._stream.ended(answers))

    def _show(self, number: int, text: str) -> None:
        self._pieces.append((number, text))
        self._news.set()

    def _begun(self, tokens: int) -> None:
        self._prompt_tokens = tokens

    async def _watch(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._drawing.cancel()


async def unless_gone(request: Any, work: Awaitable[list[Answer]]) -> list[Answer]:
    """What comes of it, unless the client hangs up.

    Raises:
        RefusedError: He did.
    """
    task = asyncio.ensure_future(work)

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        task.cancel()

    watching = asyncio.ensure_future(gone())
    try:
        return list(await task)
    except asyncio.CancelledError:
        raise _gone() from None
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


def _gone() -> RefusedError:
    return RefusedError("the client closed the request", status=499)
