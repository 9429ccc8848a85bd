"""`ToolRequests`: requests that need some of the tools of a large generated catalog."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.tasks.generated import Generated
from whetstone.tools.generated_tools import OBJECTS, VERBS
from whetstone.trajectory import Task


class ToolRequests(Generated):
    """Task source of requests to the generated catalog: one, two or three tools at levels 1, 2 and 3.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Numbers of tools, sampled uniformly; null: all levels.
    """

    name = "tool_requests"

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        pairs = draw.sample([(verb, thing) for verb in VERBS for thing in OBJECTS], level)
        needed = {f"{verb}_{thing}": draw.randint(1, 99) for verb, thing in pairs}
        clauses = [
            f"{draw.choice((verb, VERBS[verb]))} the {draw.choice((thing, OBJECTS[thing]))} {needed[f'{verb}_{thing}']}"
            for verb, thing in pairs
        ]
        private = {"tools": list(needed), "numbers": needed}
        return Task("", f"Please {', and '.join(clauses)}.", private, {"kind": f"{level} tools"})

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the expert's next step: find a needed tool by the words of its name, call it, and so on."""
        taken, needed = sum(message.role == "assistant" for message in conversation), task.private["numbers"]
        if taken >= 2 * len(needed):
            return assistant("done")
        name, number = list(needed.items())[taken // 2]
        if taken % 2 == 0:
            return assistant("", ToolCall("find_tools", f'{{"query": "{name.replace("_", " ")}"}}'))
        return assistant("", ToolCall(name, f'{{"number": {number}}}'))
