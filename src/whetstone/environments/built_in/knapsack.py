"""The opaque knapsack: items of unknown weight and value that tools reveal within a budget; pack the best set.

Source: "Agents Learn Their Runtime" describes the game; its tools, sizes and texts are original.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from random import Random
from typing import Any

from whetstone.chat import Message, ToolSpec
from whetstone.environments.built_in.scripted_tasks import as_message, script_call
from whetstone.errors import ToolError, ToolStop
from whetstone.tasks.generated import Generated
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Task


class Knapsack:
    """Tools of the knapsack: `rules`, `inspect` and `pack`.

    Each inspection costs 1 of the budget, and `pack` ends the episode.
    """

    effects = "read"

    def __init__(self) -> None:
        self.items: list[list[int]] = []
        self.capacity = self.most = self.budget = 0
        self.seen: dict[int, list[int]] = {}
        self.packed: list[int] | None = None

    def open(self, episode: Episode) -> None:
        """Load the items of the task; none is known to the agent."""
        private = episode.task.private
        self.items, self.capacity, self.most = private["items"], private["capacity"], private["most"]
        self.budget, self.seen, self.packed = private["budget"], {}, None

    def rules(self) -> str:
        """How heavy the knapsack may be, and how many things it holds."""
        return f"capacity {self.capacity}, at most {self.most} things"

    def inspect(self, item: int) -> str:
        """Look at a thing; costs 1 of the budget.

        Args:
            item: Its number, from 1.
        """
        if not 1 <= item <= len(self.items):
            raise ToolError(f"there are things 1 to {len(self.items)}")
        if self.budget == 0:
            raise ToolError("the budget is used up")
        self.budget -= 1
        weight, value = self.seen[item] = self.items[item - 1]
        return f"weight {weight}, value {value}, budget {self.budget}"

    def pack(self, items: list[int]) -> str:
        """Pack these things and be done.

        Args:
            items: Their numbers.
        """
        self.packed = items
        raise ToolStop("packed")

    def verdict(self) -> Mapping[str, Any]:
        """Return the packed value as a fraction of the optimum; 0 if the set is invalid."""
        best = total_value(self.items, best_set(self.items, self.capacity, self.most))
        chosen = self.packed or []
        weight = sum(self.items[k - 1][0] for k in chosen if 1 <= k <= len(self.items))
        fair = len(set(chosen)) == len(chosen) <= self.most and all(1 <= k <= len(self.items) for k in chosen)
        score = total_value(self.items, chosen) / best if fair and weight <= self.capacity else 0.0
        return {"success": score >= 1 - 1e-9, "score": score, "looked": len(self.seen)}


class KnapsackTasks(Generated):
    """Task source of knapsacks with 4, 6 and 8 items at levels 1, 2 and 3.

    The budget of inspections equals the number of items.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
    """

    name = "knapsack"

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        count = 2 + 2 * level
        items = [[draw.randint(1, 9), draw.randint(1, 9)] for _ in range(count)]
        capacity = max(min(weight for weight, _ in items), sum(weight for weight, _ in items) // 2)
        private = {"items": items, "capacity": capacity, "most": count // 2 + 1, "budget": count}
        prompt = f"There are {count} things. Pack the most value; you may look {count} times."
        return Task("", prompt, private, {"kind": f"{count} things"})

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the expert's next step: read the rules, inspect all items, pack the best."""
        taken, private = sum(message.role == "assistant" for message in conversation), task.private
        if taken == 0:
            return as_message(script_call("rules"))
        if taken <= len(private["items"]):
            return as_message(script_call("inspect", item=taken))
        chosen = best_set(private["items"], private["capacity"], private["most"])
        return as_message(script_call("pack", items=list(chosen)))


def total_value(items: Sequence[Sequence[int]], chosen: Sequence[int]) -> int:
    """Return the total value of items.

    Args:
        items: Weight and value of each item.
        chosen: Numbers of items, from 1; other numbers are ignored.
    """
    return sum(items[k - 1][1] for k in chosen if 1 <= k <= len(items))


def best_set(items: Sequence[Sequence[int]], capacity: int, most: int) -> tuple[int, ...]:
    """Return the numbers of the set with the highest value.

    The first if several are best.

    Args:
        items: Weight and value of each item.
        capacity: Maximum total weight.
        most: Maximum number of items.
    """
    numbers = range(1, len(items) + 1)
    sets = (chosen for size in range(1, most + 1) for chosen in combinations(numbers, size))
    fitting = (chosen for chosen in sets if sum(items[k - 1][0] for k in chosen) <= capacity)
    return max(fitting, key=lambda chosen: total_value(items, chosen), default=())
