"""Protocols of tool-call formats: describe tools, write calls, parse calls, and present results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from whetstone.chat.message import Message, ToolSpec


class ToolCallFormat(Protocol):
    """Syntax in which a model writes tool calls as text.

    The built-in formats are in `chat/formats`; a recipe selects one by name. `Chat` uses the format for the tokens of
    an episode. Parsing never raises: errors of the model are returned in `Message.malformed`.
    """

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that the format's parser treats as syntax, such as `<tool_call>`.

        `Chat` breaks up these texts in untrusted messages, so that a tool result cannot forge a call.
        """
        ...

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts after which generation of a turn stops, in addition to the template's stop tokens.

        Most formats have none.
        """
        ...

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return the description of the tools for the system message; empty if there are no tools.

        Used only if the chat template of the model does not render tools itself.
        """
        ...

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """Return an assistant message as the text that a model would have sampled for the turn.

        Args:
            message: Assistant message with text, calls, or both.
            tools: Available tools; some formats need their schemas to write arguments.

        Raises:
            ValueError: If the format cannot express the message.
        """
        ...

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Parse the text of a model's turn into an assistant message with text, calls and malformed calls.

        Args:
            text: Sampled text without the thought and without the token that ends the turn.
            tools: Available tools; some formats need their schemas to parse arguments.
        """
        ...

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Convert `tool` messages into the messages in which the format presents results to the model.

        Used only if the chat template of the model does not render messages of role `tool`.
        """
        ...


class DescribesInJinja(Protocol):
    """Tool-call format with its own Jinja macro for tool descriptions.

    Implement it if `describe` returns anything other than JSON declarations between constant text; otherwise the macro
    of an exported chat template is derived from samples.
    """

    @property
    def jinja_tools(self) -> str:
        """Body of a Jinja macro that renders the text of `describe`, from the variable `tools` (OpenAI format)."""
        ...


class WritesInJinja(Protocol):
    """Tool-call format with its own Jinja macro for tool calls.

    Implement it if `write` returns anything other than JSON arguments between constant text; otherwise the macro of an
    exported chat template is derived from samples.
    """

    @property
    def jinja_calls(self) -> str:
        """Body of a Jinja macro that renders the text of `write`, from the variables `content`, `calls` and `tools`."""
        ...
