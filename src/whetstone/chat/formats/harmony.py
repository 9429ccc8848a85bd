"""How do gpt-oss models call tools? A turn is several messages, each on a channel; one to a tool is its call.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant to=functions.name<|channel|>commentary json<|message|>{…}

Easy to get wrong: to whom a message goes may stand before its channel or behind it, and both are written out there.

Source: OpenAI 2025, the harmony response format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from whetstone.chat.formats.json_call import arguments_of, message_of, parsed, without_signs
from whetstone.chat.formats.told import results_of, told
from whetstone.chat.message import Message, ToolCall, ToolSpec

_SIGNS = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|constrain|>", "<|return|>")
_TO = re.compile(r"\bto=functions\.([^\s<>]+)")
_FRAME = re.compile(r"<\|start\|>assistant|<\|(?:end|call|return)\|>")


class Harmony:
    """` to=functions.name<|channel|>commentary json<|message|>{…}`."""

    markers = _SIGNS
    stops: tuple[str, ...] = ()

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """The tools as JSON schemas, and how to call them."""
        return told(tools, " to=functions.name<|channel|>commentary json<|message|>{<arguments>}")

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """The message's text on its channel, or its call.

        Raises:
            ValueError: There are several calls; a turn in this format holds one.
        """
        if not message.tool_calls:
            return message.text
        if len(message.tool_calls) > 1:
            raise ValueError("a turn in this format holds one call")
        (call,) = message.tool_calls
        before = f"<|channel|>analysis<|message|>{message.text}<|end|><|start|>assistant" if message.text else ""
        body = without_signs(arguments_of(call), _SIGNS)
        return f"{before} to=functions.{call.name}<|channel|>commentary json<|message|>{body}"

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """The messages to tools as calls; the rest is what the model says."""
        said: list[str] = []
        found: list[ToolCall | str] = []
        for piece in _FRAME.split(text):
            header, sign, body = piece.partition("<|message|>")
            to = _TO.search(header) if sign else None
            if to is None:
                said.append(body if sign else piece)
                if not sign and "to=functions." in piece:
                    found.append("a call is to=functions.name<|channel|>commentary json<|message|>{…}")
                continue
            value, wrong = parsed(body)
            if wrong or not isinstance(value, dict):
                found.append(f"the arguments of {to[1]} are a JSON object{': ' if wrong else ''}{wrong}")
            else:
                found.append(ToolCall(to[1], json.dumps(value)))
        return message_of("".join(said) if found or len(said) > 1 or "<|message|>" in text else text, found)

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Each answer in a user message; where the template shows answers itself, those are its own."""
        return results_of(messages)
