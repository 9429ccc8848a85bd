"""Cache of tokenized prompts: the episodes of a group have the same prompt and mostly start consecutively.

Rendering and tokenizing a prompt takes a thousandth of a second on the event loop, which all episodes share.

Note:
    A template that renders the current time gives other text tomorrow; its prompts are not cached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from whetstone.chat.message import Message, ToolSpec

T = TypeVar("T")

_MOST = 64


class PromptCache(Generic[T]):
    """Cache of recent prompts by their messages.

    Args:
        remembers: Whether the same messages always give the same result.
    """

    def __init__(self, *, remembers: bool) -> None:
        self._remembers = remembers
        self._known: dict[tuple[Message, ...], tuple[tuple[ToolSpec, ...], T]] = {}

    def get_or_create(self, messages: tuple[Message, ...], tools: tuple[ToolSpec, ...], create: Callable[[], T]) -> T:
        """Return the result for these messages and tools.

        Call `create` if it is not cached.
        """
        if not self._remembers:
            return create()
        cached = self._known.get(messages)
        if cached is not None and cached[0] == tools:
            return cached[1]
        opened = create()
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[messages] = tools, opened
        return opened
