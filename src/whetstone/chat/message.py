"""Chat messages, tool calls and tool declarations as immutable values, with conversion to and from the OpenAI format.

Note:
    `arguments` of a tool call is a JSON *string*, exactly as the model wrote it. The string can be invalid JSON; the
    toolset that executes the call then returns an error to the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Text:
    """Text part of a message's content."""

    text: str
    """Text of the part; may be empty."""


@dataclass(frozen=True, slots=True)
class Image:
    """Image part of a message's content."""

    url: str
    """HTTP address or `data:` URL of the image."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Call of a tool by the model, with unparsed arguments."""

    name: str
    """Name of the called tool; the tool does not necessarily exist."""
    arguments: str
    """Arguments as the text of a JSON object; not necessarily valid JSON."""
    id: str = ""
    """Identifier that pairs the call with its result; unique within an episode, empty if not assigned yet."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """Declaration of a tool, as a chat template or tool-call format shows it to the model."""

    name: str
    """Name by which the model calls the tool."""
    description: str
    """Purpose of the tool, in the words that the model reads."""
    parameters: Mapping[str, Any]
    """JSON Schema of type `object` for the arguments."""

    def to_openai(self) -> dict[str, Any]:
        """Return the declaration in the OpenAI format: `{"type": "function", "function": {…}}`."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    @classmethod
    def from_openai(cls, declared: Any) -> ToolSpec:
        """Parse a tool declaration in the OpenAI format or in that of the Model Context Protocol.

        A missing description becomes the empty string, and a missing schema an object without properties.

        Args:
            declared: Object with `name`, `description` and `parameters` (or `inputSchema`), optionally nested in
                `{"type": "function", "function": …}`.

        Raises:
            ValueError: If `declared` is not an object, or has no `name`.
        """
        inner = declared.get("function", declared) if isinstance(declared, Mapping) else None
        if not isinstance(inner, Mapping) or "name" not in inner:
            got = str(declared)[:80]
            raise ValueError(f'a tool must be an object with "name", "description" and "parameters", got {got}')
        parameters = inner.get("parameters") or inner.get("inputSchema") or {"type": "object", "properties": {}}
        return cls(str(inner["name"]), str(inner.get("description", "")), parameters)

    @property
    def properties(self) -> dict[str, Mapping[str, Any]]:
        """JSON Schema of each parameter by name.

        A schema that is not a mapping (`true`: anything) becomes {}.
        """
        declared = self.parameters.get("properties")
        if not isinstance(declared, Mapping):
            return {}
        return {str(name): one if isinstance(one, Mapping) else {} for name, one in declared.items()}

    @property
    def only_text_parameter(self) -> str | None:
        """Name of the parameter if the tool has exactly one and it is an unrestricted string.

        The value is None for other tools.
        """
        if len(self.properties) != 1:
            return None
        ((name, schema),) = self.properties.items()
        return name if schema.get("type") == "string" and "enum" not in schema else None


@dataclass(frozen=True, slots=True)
class Message:
    """Chat message: role, content and tool calls."""

    role: Role
    """Author of the message: `system`, `user`, `assistant` (the model) or `tool` (a tool result)."""
    content: tuple[Text | Image, ...] = ()
    """Text and image parts in order; empty if the message has only tool calls."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of an `assistant` message, in the order in which the model made them."""
    tool_call_id: str | None = None
    """Id of the call whose result a `tool` message contains; None for other roles and for results of malformed calls.
    """
    malformed: tuple[str, ...] = ()
    """One error text per tool call of an `assistant` message that could not be parsed."""

    @property
    def text(self) -> str:
        """All text parts, concatenated without a separator; images are left out."""
        return "".join(part.text for part in self.content if isinstance(part, Text))

    @property
    def key(self) -> tuple[str, ...]:
        """Text and image addresses as a tuple.

        Messages with equal keys look the same to the policy.
        """
        return (self.text, *(part.url for part in self.content if isinstance(part, Image)))

    def to_openai(self) -> dict[str, Any]:
        """Return the message as a dictionary in the OpenAI format.

        Content without images becomes a plain string, and other content a list of parts. `malformed` is an extension of
        the format and is written only if it is not empty.
        """
        written: dict[str, Any] = {"role": self.role}
        if all(isinstance(part, Text) for part in self.content):
            written["content"] = self.text
        else:
            written["content"] = [_part_to_openai(part) for part in self.content]
        if self.tool_calls:
            written["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        if self.tool_call_id is not None:
            written["tool_call_id"] = self.tool_call_id
        if self.malformed:
            written["malformed"] = list(self.malformed)
        return written

    @classmethod
    def from_openai(cls, written: Mapping[str, Any]) -> Message:
        """Parse a message in the OpenAI format, including the extension that `to_openai` writes.

        `content: null` and a missing `content` are parsed as empty content.

        Raises:
            ValueError: If the role is unknown, a text is not a string, a content part is neither text nor image, or a
                call has no function name.
        """
        if not isinstance(written, Mapping) or written.get("role") not in get_args(Role):
            roles = ", ".join(get_args(Role))
            raise ValueError(f"a message must be an object with a role of {roles}, got {str(written)[:80]}")
        content = written.get("content") or ()
        parts: Sequence[Text | Image]
        parts = (Text(content),) if isinstance(content, str) else [_part_from_openai(part) for part in _list(content)]
        calls = tuple(_call_from_openai(call) for call in _list(written.get("tool_calls") or ()))
        malformed = tuple(_text(wrong) for wrong in _list(written.get("malformed") or ()))
        answers = written.get("tool_call_id")
        return cls(written["role"], tuple(parts), calls, None if answers is None else _text(answers), malformed)


def system(text: str) -> Message:
    """Create a system message with one text part."""
    return Message("system", (Text(text),))


def user(text: str) -> Message:
    """Create a user message with one text part."""
    return Message("user", (Text(text),))


def assistant(text: str, *tool_calls: ToolCall) -> Message:
    """Create an assistant message (a turn of the model); an empty text gives empty content."""
    return Message("assistant", (Text(text),) if text else (), tool_calls)


def tool_result(text: str, *, call_id: str | None = None) -> Message:
    """Create a `tool` message with the result of a call.

    Args:
        text: Result as the model reads it.
        call_id: Id of the call; None if the call could not be parsed.
    """
    return Message("tool", (Text(text),), tool_call_id=call_id)


def with_text(message: Message, text: str) -> Message:
    """Return a copy of a message whose content is only this text.

    Images are dropped, calls are kept.
    """
    return replace(message, content=(Text(text),) if text else ())


def _part_to_openai(part: Text | Image) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    return {"type": "image_url", "image_url": {"url": part.url}}


def _part_from_openai(part: Any) -> Text | Image:
    kind = part.get("type") if isinstance(part, Mapping) else part
    if kind == "text":
        return Text(_text(part.get("text")))
    if kind == "image_url" and isinstance(part.get("image_url"), Mapping):
        return Image(_text(part["image_url"].get("url")))
    raise ValueError(f'unknown content part "{str(kind)[:80]}"; allowed: text, image_url')


def _call_from_openai(call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise ValueError(f'a tool call must be an object with "function", got {str(call)[:80]}')
    return ToolCall(_text(function.get("name")), _text(function.get("arguments")), _text(call.get("id") or ""))


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list, got {str(value)[:80]}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a string, got {str(value)[:80]}")
    return value
