"""What did an episode begin with that began alike? The episodes of a group do, and most often one after the other.

Rendering and reading a prompt takes a thousandth of a second on the event loop, which all episodes share.

Easy to get wrong: a template that shows the time of day shows another text tomorrow; of such, nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from whetstone.chat.message import Message, ToolSpec

T = TypeVar("T")

_MOST = 64


class Openings(Generic[T]):
    """The last few beginnings, by their messages.

    Args:
        remembers: Whether the same beginning always comes to the same.
    """

    def __init__(self, *, remembers: bool) -> None:
        self._remembers = remembers
        self._known: dict[tuple[Message, ...], tuple[tuple[ToolSpec, ...], T]] = {}

    def of(self, messages: tuple[Message, ...], tools: tuple[ToolSpec, ...], made: Callable[[], T]) -> T:
        """What these messages and tools came to, `made` where it is not known."""
        if not self._remembers:
            return made()
        found = self._known.get(messages)
        if found is not None and found[0] == tools:
            return found[1]
        opened = made()
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[messages] = tools, opened
        return opened
