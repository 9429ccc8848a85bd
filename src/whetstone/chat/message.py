"""Chat messages in the OpenAI format, as immutable values.

Note:
    `arguments` of a tool call is a JSON *string*, exactly as in the model's text. It may be invalid; the component that
    executes the call then returns an error to the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Text:
    """Text part of a message."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """Image part of a message."""

    url: str
    """Address or `data:` URL."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call."""

    name: str
    arguments: str
    """A JSON object as text; not necessarily valid."""
    id: str = ""
    """Identifier that pairs the call with its result; unique within the episode."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """Declaration of a tool for a model."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """A JSON Schema of type `object`."""

    def to_openai(self) -> dict[str, Any]:
        """Return the declaration in the OpenAI format."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    @classmethod
    def from_openai(cls, declared: Any) -> ToolSpec:
        """Parse a declaration in the OpenAI format, with or without `{"type": "function", "function": …}` around it, or
        in the format of the Model Context Protocol (`inputSchema`).

        Raises:
            ValueError: If it is not one.
        """
        inner = declared.get("function", declared) if isinstance(declared, Mapping) else None
        if not isinstance(inner, Mapping) or "name" not in inner:
            raise ValueError('a tool is an object with "name", "description", "parameters"')
        parameters = inner.get("parameters") or inner.get("inputSchema") or {"type": "object", "properties": {}}
        return cls(str(inner["name"]), str(inner.get("description", "")), parameters)

    @property
    def properties(self) -> dict[str, Mapping[str, Any]]:
        """Schema of each parameter by name.

        A schema that is not a mapping (`true`: anything) becomes {}.
        """
        declared = self.parameters.get("properties")
        if not isinstance(declared, Mapping):
            return {}
        return {str(name): one if isinstance(one, Mapping) else {} for name, one in declared.items()}

    @property
    def only_text_parameter(self) -> str | None:
        """Name of the parameter if the tool has exactly one, a string; else None."""
        if len(self.properties) != 1:
            return None
        ((name, schema),) = self.properties.items()
        return name if schema.get("type") == "string" and "enum" not in schema else None


@dataclass(frozen=True, slots=True)
class Message:
    """One message: role, content and tool calls."""

    role: Role
    content: tuple[Text | Image, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """Id of the call of which a `tool` message is the result."""
    malformed: tuple[str, ...] = ()
    """Calls that could not be parsed, each as an error text; only on `assistant` messages."""

    @property
    def text(self) -> str:
        """Concatenated text parts."""
        return "".join(part.text for part in self.content if isinstance(part, Text))

    @property
    def key(self) -> tuple[str, ...]:
        """Text and addresses of images: equal for messages that are equal for the policy."""
        return (self.text, *(part.url for part in self.content if isinstance(part, Image)))

    def to_openai(self) -> dict[str, Any]:
        """Return the message in the OpenAI format.

        Content without images is a plain string.

        `malformed` is an extension and is written only if it is not empty.
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
        """Parse a message of `to_openai` or of any OpenAI-style API.

        `content: null` is no content.

        Raises:
            ValueError: If it is not one: an unknown role, a text that is not a string, a call without a name.
        """
        if not isinstance(written, Mapping) or written.get("role") not in get_args(Role):
            raise ValueError(f"a message has a role of {', '.join(get_args(Role))}, got {str(written)[:80]}")
        content = written.get("content") or ()
        parts: Sequence[Text | Image]
        parts = (Text(content),) if isinstance(content, str) else [_part_from_openai(part) for part in _list(content)]
        calls = tuple(_call_from_openai(call) for call in _list(written.get("tool_calls") or ()))
        malformed = tuple(_text(wrong) for wrong in _list(written.get("malformed") or ()))
        answers = written.get("tool_call_id")
        return cls(written["role"], tuple(parts), calls, None if answers is None else _text(answers), malformed)


def system(text: str) -> Message:
    """Create a system message."""
    return Message("system", (Text(text),))


def user(text: str) -> Message:
    """Create a user message."""
    return Message("user", (Text(text),))


def assistant(text: str, *tool_calls: ToolCall) -> Message:
    """Create a message of the model."""
    return Message("assistant", (Text(text),) if text else (), tool_calls)


def tool_result(text: str, *, call_id: str | None = None) -> Message:
    """Create a tool result; `call_id` is None if the call could not be parsed."""
    return Message("tool", (Text(text),), tool_call_id=call_id)


def with_text(message: Message, text: str) -> Message:
    """Return a message with another text."""
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
    raise ValueError(f'no content part "{str(kind)[:80]}"; there are: text, image_url')


def _call_from_openai(call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise ValueError(f"a call is an object with a function, got {str(call)[:80]}")
    return ToolCall(_text(function.get("name")), _text(function.get("arguments")), _text(call.get("id") or ""))


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list, got {str(value)[:80]}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a string, got {str(value)[:80]}")
    return value
