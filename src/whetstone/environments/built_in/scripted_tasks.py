"""Tasks with a scripted expert: a sequence of messages and tool calls in the task's private data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.tasks.generated import Generated
from whetstone.trajectory import Task

Step = list[Any]
"""Step of a script: `["call", name, arguments]` or `["say", text]`."""


def script_call(name: str, **arguments: Any) -> Step:
    """Return a step of an expert's script that calls a tool with arguments."""
    return ["call", name, arguments]


def script_text(text: str) -> Step:
    """Return a step of an expert's script that sends a text without a call."""
    return ["say", text]


class Scripted(Generated):
    """Base class of generated tasks whose expert follows a script.

    A subclass generates the tasks in `make`, with a `script` in their private data.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
    """

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the next step of the script as a message.

        After its end the last step again.
        """
        script: Sequence[Step] = task.private["script"]
        taken = sum(message.role == "assistant" for message in conversation)
        return as_message(script[min(taken, len(script) - 1)])


def as_message(step: Step) -> Message:
    """Convert a step of a script to a message of the assistant."""
    if step[0] == "say":
        return assistant(step[1])
    return assistant("", ToolCall(step[1], json.dumps(step[2], ensure_ascii=False)))
