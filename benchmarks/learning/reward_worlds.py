"""Tasks that distinguish rewards: a tool that is not always needed, and calls with several parameters."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.errors import ToolStop
from whetstone.seeding import derive_random, derive_seed
from whetstone.tools.arithmetic_tools import evaluate_expression, format_number
from whetstone.trajectory import Task

_CITIES = ("Bergen", "Cadiz", "Delft", "Ghent", "Izmir", "Kyoto", "Lima", "Malmo", "Nantes", "Oslo", "Porto", "Quito")


class OptionalTool:
    """Sums of small numbers, which can be memorized, and products of three-digit numbers, which cannot.

    Demonstrations call the calculator for most sums as well, like an agent that was trained to use its tool.

    Args:
        seed: Seed of the training tasks.
        needless: Fraction of the sums with a call.
        easy: Fraction of sums.
        again: Probability that a call is repeated after its result.
    """

    def __init__(self, *, seed: int = 0, needless: float = 0.7, easy: float = 0.75, again: float = 0.0) -> None:
        self.seed, self.needless, self.easy, self.again = seed, needless, easy, again

    def task(self, index: int) -> Task:
        """Return training task `index`."""
        return self._drawn(derive_random(self.seed, "optional", index), f"training-{self.seed}-{index}")

    def held_out(self, count: int) -> list[Task]:
        """Return held-out tasks, which do not depend on the seed."""
        return [self._drawn(derive_random("optional", "held out", k), f"held-out-{k}") for k in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return a call if the tool is used, otherwise the answer."""
        results = [message.text for message in conversation if message.role == "tool"]
        asks = task.tags["kind"] == "hard" or derive_seed("needless", task.id) % 1000 < 1000 * self.needless
        repeats = 0 < len(results) < 3 and derive_seed("again", task.id, len(results)) % 1000 < 1000 * self.again
        if (asks and not results) or repeats:
            (tool,) = tools
            return assistant(
                "", ToolCall(tool.name, json.dumps({tool.only_text_parameter: task.private["expression"]}))
            )
        return assistant(results[-1] if results else str(task.private["answer"]))

    def _drawn(self, draw: random.Random, name: str) -> Task:
        easy = draw.random() < self.easy
        if easy:
            total = draw.randint(1, 5)
            expression = f"{(first := draw.randint(0, total))}+{total - first}"
        else:
            expression = f"{draw.randint(100, 999)}*{draw.randint(100, 999)}"
        private = {"answer": format_number(evaluate_expression(expression)), "expression": expression}
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
    """Sentences that require one call with five parameters.

    Args:
        seed: Seed of the training tasks.
        nights: Maximum number of nights; a larger one makes right calls less frequent.
    """

    def __init__(self, *, seed: int = 0, nights: int = 9) -> None:
        self.seed, self.nights = seed, nights

    def task(self, index: int) -> Task:
        """Return training task `index`."""
        return self._drawn(derive_random(self.seed, "bookings", index))

    def held_out(self, count: int) -> list[Task]:
        """Return held-out tasks, which do not depend on the seed."""
        return [self._drawn(derive_random("bookings", "held out", k), f"/{k}") for k in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the call."""
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
