"""What is a message? One chat message in the OpenAI shape, as a value.

Easy to get wrong: `arguments` of a tool call is a JSON *string*, exactly as the model's text gave it.
It may not parse; whoever executes the call finds that out and answers with an error the model reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text in a message."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """A picture in a message."""

    url: str
    """An address or a `data:` URL."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the model asked for."""

    name: str
    arguments: str
    """A JSON object as text; not necessarily valid."""
    id: str = ""
    """Pairs the call with its answer; unique within the episode."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What a model is told of a tool."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """A JSON Schema of type `object`."""

    def to_openai(self) -> dict[str, Any]:
        """The declaration as the OpenAI chat API writes it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    @classmethod
    def from_openai(cls, declared: Any) -> ToolSpec:
        """A declaration in the OpenAI shape, with or without `{"type": "function", "function": …}` around it, or as the
        Model Context Protocol writes it (`inputSchema`).

        Raises:
            ValueError: It is none.
        """
        inner = declared.get("function", declared) if isinstance(declared, Mapping) else None
        if not isinstance(inner, Mapping) or "name" not in inner:
            raise ValueError('a tool is an object with "name", "description", "parameters"')
        parameters = inner.get("parameters") or inner.get("inputSchema") or {"type": "object", "properties": {}}
        return cls(str(inner["name"]), str(inner.get("description", "")), parameters)

    @property
    def properties(self) -> dict[str, Mapping[str, Any]]:
        """The schema of each parameter by name; one that is no mapping (`true`: anything) says nothing."""
        declared = self.parameters.get("properties")
        if not isinstance(declared, Mapping):
            return {}
        return {str(name): one if isinstance(one, Mapping) else {} for name, one in declared.items()}

    @property
    def only_text_parameter(self) -> str | None:
        """The name of the parameter where the tool takes exactly one, a string; else None."""
        if len(self.properties) != 1:
            return None
        ((name, schema),) = self.properties.items()
        return name if schema.get("type") == "string" and "enum" not in schema else None


@dataclass(frozen=True, slots=True)
class Message:
    """One message: who speaks, what is said, and what is called."""

    role: Role
    content: tuple[Text | Image, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """On a `tool` message: the call it answers."""
    malformed: tuple[str, ...] = ()
    """Attempts at a call that could not be read, each with what was wrong; only on `assistant` messages."""

    @property
    def text(self) -> str:
        """All text parts, one after the other."""
        return "".join(part.text for part in self.content if isinstance(part, Text))

    @property
    def key(self) -> tuple[str, ...]:
        """Text and addresses of images: equal for messages that show the same to the policy."""
        return (self.text, *(part.url for part in self.content if isinstance(part, Image)))

    def to_openai(self) -> dict[str, Any]:
        """The message as the OpenAI chat API writes it; text alone is a plain string.

        `malformed` is ours and is written only where there is something in it.
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
        """The message `to_openai` wrote, or one from any OpenAI-style API; `content: null` is no content.

        Raises:
            ValueError: It is none: another role, a text that is no text, a call without a name.
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
    """A message that sets the scene."""
    return Message("system", (Text(text),))


def user(text: str) -> Message:
    """A message from the user."""
    return Message("user", (Text(text),))


def assistant(text: str, *tool_calls: ToolCall) -> Message:
    """A message from the model."""
    return Message("assistant", (Text(text),) if text else (), tool_calls)


def tool_result(text: str, *, call_id: str | None = None) -> Message:
    """The answer of a tool; no `call_id` where the call could not even be read."""
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
        raise ValueError(f"a list was to be here, got {str(value)[:80]}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a text was to be here, got {str(value)[:80]}")
    return value
