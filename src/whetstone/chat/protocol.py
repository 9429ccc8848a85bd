"""The seam of the chat room: how a model is told of tools, asks for them, and reads their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from whetstone.chat.message import Message, ToolSpec


class ToolCallFormat(Protocol):
    """A way to write tool calls as text. Reading never raises: what cannot be read is in `Message.malformed`."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts with a meaning of their own; in foreign text they are broken up so that nothing is forged."""
        ...

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts behind which a turn is over, whatever the model would go on to say."""
        ...

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """What the system message says of the tools on offer; empty where there are none."""
        ...

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """An assistant message as the text a model would have produced.

        Raises:
            ValueError: The message holds something the format cannot express.
        """
        ...

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """The assistant message in a model's text: what it says, what it calls, and what could not be read."""
        ...

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with `tool` answers in the form this format shows them to the model."""
        ...


class DescribesInJinja(Protocol):
    """A tool-call format that describes tools otherwise than as JSON between constant text."""

    @property
    def jinja_tools(self) -> str:
        """Body of a Jinja macro with `tools` (OpenAI format) that writes what `describe` returns."""
        ...


class WritesInJinja(Protocol):
    """A tool-call format that writes calls otherwise than as JSON between constant text."""

    @property
    def jinja_calls(self) -> str:
        """Body of a Jinja macro with `content`, `calls` and `tools` that writes what `write` returns for calls."""
        ...
