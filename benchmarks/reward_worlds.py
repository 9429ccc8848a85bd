"""Tasks on which rewards can be told apart: a tool that is not always needed, and calls with several parameters."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.errors import ToolStop
from whetstone.seeding import derive_random, derive_seed
from whetstone.tools.arithmetic import evaluate, shown
from whetstone.trajectory import Task

_CITIES = ("Bergen", "Cadiz", "Delft", "Ghent", "Izmir", "Kyoto", "Lima", "Malmo", "Nantes", "Oslo", "Porto", "Quito")


class OptionalTool:
    """Sums of up to five, which are known by heart, and products of three-digit ones, which are not.

    The expert asks the calculator for most of the sums, too, as an agent does that was taught to use its tool.

    Args:
        seed: Another seed, other training tasks.
        needless: Share of the sums for which he does.
        easy: Share of sums.
        again: The chance with which he asks for the same once more, each time he was told.
    """

    def __init__(self, *, seed: int = 0, needless: float = 0.7, easy: float = 0.75, again: float = 0.0) -> None:
        self.seed, self.needless, self.easy, self.again = seed, needless, easy, again

    def task(self, index: int) -> Task:
        """Training task `index`."""
        return self._drawn(derive_random(self.seed, "optional", index), f"training-{self.seed}-{index}")

    def held_out(self, count: int) -> list[Task]:
        """The same tasks whatever the seed."""
        return [self._drawn(derive_random("optional", "held out", k), f"held-out-{k}") for k in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """One call where the tool is used, the answer where it is not."""
        told = [message.text for message in conversation if message.role == "tool"]
        asks = task.tags["kind"] == "hard" or derive_seed("needless", task.id) % 1000 < 1000 * self.needless
        again = 0 < len(told) < 3 and derive_seed("again", task.id, len(told)) % 1000 < 1000 * self.again
        if (asks and not told) or again:
            (tool,) = tools
            return assistant(
                "", ToolCall(tool.name, json.dumps({tool.only_text_parameter: task.private["expression"]}))
            )
        return assistant(told[-1] if told else str(task.private["answer"]))

    def _drawn(self, draw: random.Random, name: str) -> Task:
        easy = draw.random() < self.easy
        if easy:
            total = draw.randint(1, 5)
            expression = f"{(first := draw.randint(0, total))}+{total - first}"
        else:
            expression = f"{draw.randint(100, 999)}*{draw.randint(100, 999)}"
        private = {"answer": shown(evaluate(expression)), "expression": expression}
        return Task(f"{name}/{expression}", f"Compute {expression}", private, {"kind": "easy" if easy else "hard"})


def book(city: str, nights: int, guests: int, breakfast: Literal["yes", "no"], room: Literal["quiet", "large"]) -> str:
    """Book a room.

    Args:
        city: Where.
        nights: How many.
        guests: How many.
        breakfast: Whether there is any.
        room: Which kind.
    """
    raise ToolStop("Booked.")


class Bookings:
    """A sentence, and the one call it asks for, with five parameters.

    Args:
        seed: Another seed, other training tasks.
        nights: The most there are; with more, calls are right more seldom.
    """

    def __init__(self, *, seed: int = 0, nights: int = 9) -> None:
        self.seed, self.nights = seed, nights

    def task(self, index: int) -> Task:
        """Training task `index`."""
        return self._drawn(derive_random(self.seed, "bookings", index))

    def held_out(self, count: int) -> list[Task]:
        """The same tasks whatever the seed."""
        return [self._drawn(derive_random("bookings", "held out", k), f"/{k}") for k in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The call."""
        (call,) = task.private["calls"]
        return assistant("", ToolCall(call["name"], json.dumps(call["arguments"])))

    def _drawn(self, draw: random.Random, number: str = "") -> Task:
        wanted: Mapping[str, Any] = {
            "city": draw.choice(_CITIES),
            "nights": draw.randint(1, self.nights),
            "guests": draw.randint(1, 9),
            "breakfast": draw.choice(("yes", "no")),
            "room": draw.choice(("quiet", "large")),
        }
        breakfast = "with" if wanted["breakfast"] == "yes" else "without"
        parts = [
            f"in {wanted['city']}",
            f"{wanted['nights']} nights",
            f"{wanted['guests']} guests",
            f"{breakfast} breakfast",
        ]
        draw.shuffle(parts)
        text = f"A {wanted['room']} room {', '.join(parts)}"
        return Task(
            f"booking/{text}{number}", text, {"calls": [{"name": "book", "arguments": wanted}]}, {"kind": "book"}
        )
