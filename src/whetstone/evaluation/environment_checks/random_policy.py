"""Random policy: any admissible command, or any tool with valid arguments.

Note: A policy that types random letters scores 0 everywhere and does not measure the difficulty of a task. Texts are
words of the conversation, so that they include names, IDs and paths.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from whetstone.chat import Message, ToolCall, ToolSpec, assistant

_WORD = re.compile(r"[#\w][\w.\-]*")
_SPEAKS = 0.2
"""Probability of a text message if there are tools."""


class RandomPolicy:
    """Samples random admissible commands, tool calls with valid arguments, or words of the conversation.

    Args:
        seed: Seed of the random generator.
    """

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)

    def choose_action(
        self, conversation: Sequence[Message], tools: Sequence[ToolSpec], admissible: Sequence[str] = ()
    ) -> Message:
        """Sample an action: an admissible command if the environment lists them, else a tool call, else a word."""
        words = _WORD.findall(" ".join(message.text for message in conversation)) or ["yes"]
        if admissible:
            command = self.draw.choice(list(admissible))
            if any(tool.name == "act" for tool in tools):
                return assistant("", ToolCall("act", json.dumps({"command": command}), "call_0"))
            return assistant(command)
        if not tools or self.draw.random() < _SPEAKS:
            return assistant(self.draw.choice(words))
        tool = self.draw.choice(list(tools))
        properties = tool.properties
        arguments = {name: self._value(schema, words) for name, schema in properties.items()}
        return assistant("", ToolCall(tool.name, json.dumps(arguments), "call_0"))

    def _value(self, schema: Mapping[str, Any], words: Sequence[str]) -> Any:
        if "enum" in schema:
            return self.draw.choice(list(schema["enum"]))
        kind = schema.get("type", "string")
        if kind == "integer":
            return self.draw.randint(0, 10)
        if kind == "number":
            return round(self.draw.uniform(0, 10), 2)
        if kind == "boolean":
            return self.draw.random() < 0.5
        if kind == "array":
            return [self._value(schema.get("items", {}), words) for _ in range(self.draw.randint(1, 3))]
        if kind == "object":
            return {name: self._value(inner, words) for name, inner in schema.get("properties", {}).items()}
        return self.draw.choice(words)
