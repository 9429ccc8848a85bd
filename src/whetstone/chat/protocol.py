"""Interfaces of tool-call formats: describing tools, writing and parsing calls, writing results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from whetstone.chat.message import Message, ToolSpec


class ToolCallFormat(Protocol):
    """A syntax of tool calls in text. Parsing never raises: errors are in `Message.malformed`."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts with a special meaning.

        In untrusted text they are broken up so that calls cannot be forged.
        """
        ...

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts after which a turn ends, whatever the model would write next."""
        ...

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return the description of the tools in the system message.

        Empty if there are none.
        """
        ...

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """Write an assistant message as the text that a model would have produced.

        Raises:
            ValueError: If the format cannot express the message.
        """
        ...

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Parse a model's text into an assistant message: text, calls and malformed calls."""
        ...

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Convert `tool` messages into the form in which this format presents results to the model."""
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
