"""Tasks with a scripted expert: a sequence of texts and calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.tasks.generated import Generated
from whetstone.trajectory import Task

Step = list[Any]
"""`["call", name, arguments]` or `["say", text]`."""


def script_call(name: str, **arguments: Any) -> Step:
    """Return a call of a script."""
    return ["call", name, arguments]


def script_text(text: str) -> Step:
    """Return a text of a script."""
    return ["say", text]


class Scripted(Generated):
    """Tasks with a `script` in their private data; a subclass generates them.

    Args:
        seed: See `Generated`.
        levels: See `Generated`.
    """

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the next step of the script; after its end the last one again."""
        script: Sequence[Step] = task.private["script"]
        taken = sum(message.role == "assistant" for message in conversation)
        return as_message(script[min(taken, len(script) - 1)])


def as_message(step: Step) -> Message:
    """Return a step of a script as a message."""
    if step[0] == "say":
        return assistant(step[1])
    return assistant("", ToolCall(step[1], json.dumps(step[2], ensure_ascii=False)))
