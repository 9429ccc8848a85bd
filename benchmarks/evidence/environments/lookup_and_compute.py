"""Tasks that require a lookup tool, a calculator, or one after the other, with traces of their solutions.

Prices are random per task, so that the policy cannot memorize them: the price list belongs to the task.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.errors import ToolError
from whetstone.seeding import derive_random
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Task

THINGS = ("bolt", "cord", "disc", "fork", "gong", "hook", "iron", "jug")
KINDS = ("price", "product", "both")
HELD_OUT_SHARE = 10
"""One of this number of tasks is held out."""


class PriceList:
    """The price list of the task."""

    def __init__(self) -> None:
        self.listed: dict[str, int] = {}

    def open(self, episode: Episode) -> None:
        """Load the price list of the task."""
        self.listed = dict(episode.task.private["prices"])

    def look_up(self, thing: str) -> str:
        """Say what a thing costs.

        Args:
            thing: Its name.
        """
        if thing not in self.listed:
            raise ToolError(f"there is no {thing}")
        return str(self.listed[thing])


class BothTools:
    """Prices, products, and products with a price.

    Args:
        seed: Seed of the training tasks.
        kinds: Kinds of tasks, sampled uniformly.
    """

    def __init__(self, *, seed: int = 0, kinds: Sequence[str] = KINDS) -> None:
        self.seed, self.kinds = seed, list(kinds)

    def task(self, index: int) -> Task:
        """Return training task `index`."""
        draw = derive_random(self.seed, "both tools", index)
        return self._task(draw, draw.choice(self.kinds), held_out=False)

    def held_out(self, count: int) -> list[Task]:
        """Return held-out tasks, which do not depend on the seed, with alternating kinds."""
        draw = derive_random("both tools", "held out")
        tasks: dict[str, Task] = {}
        while len(tasks) < count:
            task = self._task(draw, self.kinds[len(tasks) % len(self.kinds)], held_out=True)
            tasks[task.id] = task
        return list(tasks.values())

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the next call of a lookup, a product or both, then the last result as the answer."""
        read = [message.text for message in conversation if message.role == "tool"]
        calls = calls_of(task, read)
        if len(read) < len(calls):
            name, arguments = calls[len(read)]
            return assistant("", ToolCall(name, json.dumps(arguments)))
        return assistant(read[-1])

    def _task(self, draw: random.Random, kind: str, *, held_out: bool) -> Task:
        while True:
            thing, count, other = draw.choice(THINGS), draw.randint(100, 999), draw.randint(100, 999)
            if ((count * 1009 + other) % HELD_OUT_SHARE == 0) == held_out:
                break
        prices = {each: draw.randint(100, 999) for each in THINGS}
        prices[thing] = other
        prompts = {
            "price": f"Price of {thing}",
            "product": f"Compute {count}*{other}",
            "both": f"Cost of {count} {thing}",
        }
        answer = other if kind == "price" else count * other
        private: dict[str, Any] = {"answer": str(answer), "prices": prices, "thing": thing, "factors": (count, other)}
        private["expert_turns"] = 3 if kind == "both" else 2
        return Task(f"both-tools/{prompts[kind]}/{other}", prompts[kind], private, {"kind": kind})


def calls_of(task: Task, read: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    """Return (tool, arguments) of the required calls whose arguments are known from the results so far."""
    kind, (count, other) = task.tags["kind"], task.private["factors"]
    look = ("look_up", {"thing": str(task.private["thing"])})
    factor = (read[0] if read else "?") if kind == "both" else other
    product = ("pocket_calculator", {"expression": f"{count}*{factor}"})
    return {"price": [look], "product": [product], "both": [look, product]}[kind]


def traces(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield conversations on tasks with both tools, and their rewards.

    A third answers with the price, a third looks up twice; a filter by reward and cleanliness keeps the rest.
    """
    source = BothTools(seed=seed + 1, kinds=("both",))
    for index in range(count):
        task = source.task(index)
        price = str(task.private["factors"][1])
        calls = calls_of(task, [price])
        results = [price, task.private["answer"]]
        if index % 3 == 1:
            calls, results = calls[:1], results[:1]
        if index % 3 == 2:
            calls, results = [calls[0]] * 3 + calls[1:], [price] * 3 + results[1:]
        messages: list[dict[str, Any]] = [{"role": "user", "content": task.prompt}]
        for number, ((name, arguments), result) in enumerate(zip(calls, results, strict=True)):
            function = {"name": name, "arguments": json.dumps(arguments)}
            call = {"id": f"call_{number}", "type": "function", "function": function}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": result})
        messages.append({"role": "assistant", "content": results[-1]})
        yield {"messages": messages, "reward": float(results[-1] == task.private["answer"]), "task_id": task.id}
