"""Tool calls of gpt-oss models: a turn is several messages, each on a channel; a message to a tool is a call.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant to=functions.name<|channel|>commentary json<|message|>{…}

Note:
    The recipient of a message is written before its channel or after it. Both are read.

Source: OpenAI 2025, the harmony response format.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from whetstone.chat.formats.json_call import (
    build_message,
    dump_without_markers,
    parse_call_arguments,
    parse_strict_json,
    require_same_calls,
)
from whetstone.chat.formats.scanning import cut_marker
from whetstone.chat.formats.tool_prompts import render_results, render_tool_prompt
from whetstone.chat.message import Message, ToolCall, ToolSpec

_SIGNS = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|constrain|>", "<|return|>")
_TO = re.compile(r"\bto=functions\.([^\s<>]+)")
_FRAME = re.compile(r"<\|start\|>assistant|<\|(?:end|call|return)\|>")


class Harmony:
    """Tool-call format of gpt-oss: ` to=functions.name<|channel|>commentary json<|message|>{…}`."""

    markers = _SIGNS
    stops: tuple[str, ...] = ()

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return the tools as JSON declarations, with an example of a call."""
        return render_tool_prompt(tools, " to=functions.name<|channel|>commentary json<|message|>{<arguments>}")

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a message on the channel `analysis`, followed by its only call.

        Raises:
            ValueError: If there are several calls, or the name of the tool contains whitespace.
        """
        if not message.tool_calls:
            return message.text
        if len(message.tool_calls) > 1:
            raise ValueError("a turn in this format contains one call")
        (call,) = message.tool_calls
        before = f"<|channel|>analysis<|message|>{message.text}<|end|><|start|>assistant" if message.text else ""
        body = dump_without_markers(parse_call_arguments(call), _SIGNS)
        written = f" to=functions.{call.name}<|channel|>commentary json<|message|>{body}"
        require_same_calls(self.read(written, tools), message)
        return before + written

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Message:
        """Parse messages to tools as calls, and all other messages as text."""
        texts: list[str] = []
        blocks: list[ToolCall | str] = []
        for index, piece in enumerate(_FRAME.split(text)):
            header, sign, body = piece.partition("<|message|>")
            to = _TO.search(header)
            if to is None:
                texts.append(body if sign else piece)
                if any(one in texts[-1] for one in _SIGNS) or (not sign and index and piece.strip()):
                    texts.pop()
                    blocks.append(f"a message is not complete: {piece[:60]!r}")
                continue
            try:
                value = parse_strict_json(body) if sign else None
                if not isinstance(value, dict):
                    raise ValueError("" if sign else "<|message|> is missing")
            except ValueError as error:
                blocks.append(f"the arguments of {to[1]} must be a JSON object{f': {error}' if str(error) else ''}")
            else:
                blocks.append(ToolCall(to[1], body.strip()))
        if texts and not blocks and cut_marker(texts[-1], (" to=functions.", *_SIGNS)):
            blocks.append(f"the turn ends within a message to a tool: {texts[-1][-40:]!r}")
        return build_message("".join(texts) if blocks or len(texts) > 1 or "<|message|>" in text else text, blocks)

    def results(self, messages: Sequence[Message]) -> list[Message]:
        """Return tool results as user messages, for templates that do not render results."""
        return render_results(messages)
