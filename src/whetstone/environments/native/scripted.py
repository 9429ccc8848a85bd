"""Tasks whose expert follows a script: what is said or called, one after the other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.tasks.generated import Generated
from whetstone.trajectory import Task

Step = list[Any]
"""`["call", name, arguments]` or `["say", text]`."""


def call(name: str, **arguments: Any) -> Step:
    """A call in a script."""
    return ["call", name, arguments]


def say(text: str) -> Step:
    """Something said in a script."""
    return ["say", text]


class Scripted(Generated):
    """Tasks with a `script` in their private data; a subclass makes them.

    Args:
        seed: As of `Generated`.
        levels: As of `Generated`.
    """

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The step after as many as were taken; the last one again behind the end."""
        script: Sequence[Step] = task.private["script"]
        taken = sum(message.role == "assistant" for message in conversation)
        return as_message(script[min(taken, len(script) - 1)])


def as_message(step: Step) -> Message:
    """What a step of a script is as a message."""
    if step[0] == "say":
        return assistant(step[1])
    return assistant("", ToolCall(step[1], json.dumps(step[2], ensure_ascii=False)))
