"""Generated tasks, some of them held out, and an expert."""

import json
import random
from collections.abc import Sequence

from whetstone import Task
from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.tasks import Generated


class Receipts(Generated):
    """Total cost of some items. Level 1 has one kind of item, level 2 has two."""

    name, most = "starter", 2

    def make(self, draw: random.Random, level: int) -> Task:
        """Sample a task. The prompt is for the model; `private` is only for the reward and the expert."""
        bought = [(draw.randint(2, 99), draw.randint(2, 99)) for _ in range(level)]
        prompt = "Cost of " + " and ".join(f"{count} at {price}" for count, price in bought)
        answer = str(sum(count * price for count, price in bought))
        return Task("", prompt, {"answer": answer, "sum": "+".join(f"{count}*{price}" for count, price in bought)})

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Call the calculator, then answer with its result."""
        last = conversation[-1]
        if last.role == "tool":
            return assistant(last.text)
        return assistant("", ToolCall(tools[0].name, json.dumps({"expression": task.private["sum"]})))
