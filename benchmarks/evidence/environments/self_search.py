"""Relations that the policy partly knows: it can search for a relation or write the search result itself.

The warm-up shows searches, answers from results (sometimes wrong), and the content of pages (right three times in
four), so that both the written results and the answers can improve.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from planner import NAMES, RELATIONS, look_up
from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.seeding import derive_random
from whetstone.trajectory import Score, Task, Trajectory

KNOWN, COPIED = 0.75, 0.6
"""Probabilities that the warm-up writes the right page, and that it answers with the result."""


def search(query: str) -> str:
    """Look a relation of a person up.

    Args:
        query: Relation and name.
    """
    words = query.split()
    return look_up(*words) if len(words) == 2 else "nothing"


class Family:
    """Task source of questions for a boss, mother or friend.

    Args:
        pages: Fraction of training tasks that request a page; for demonstrations.
    """

    def __init__(self, *, seed: int = 0, pages: float = 0.0) -> None:
        self.seed, self.pages = seed, pages

    def task(self, index: int) -> Task:
        """Return training question `index`."""
        return self._task("training", self.seed, index)

    def held_out(self, count: int) -> list[Task]:
        """Return held-out questions, which do not depend on the seed."""
        return [self._task("held out", 0, index) for index in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return a search, an answer or a page."""
        draw = derive_random("family shown", task.id)
        right = task.private["right"]
        if task.tags["kind"] == "page":
            return assistant(right if draw.random() < KNOWN else draw.choice(NAMES))
        if len(conversation) == 1:
            return assistant("", ToolCall("search", json.dumps({"query": task.private["asked"]})))
        return assistant(right if draw.random() < COPIED else draw.choice(NAMES))

    def _task(self, split: str, seed: int, index: int) -> Task:
        draw = derive_random("family task", split, seed, index)
        relation, name = draw.choice(RELATIONS), draw.choice(NAMES)
        page = draw.random() < self.pages
        query = f"{relation} {name}"
        private = {"right": look_up(relation, name), "asked": query, "shown": self.pages > 0}
        text = f"write {query}" if page else f"{query}?"
        return Task(f"family/{split}/{seed}/{index}", text, private, {"kind": "page" if page else "question"})


async def named(trajectory: Trajectory, task: Task) -> Score:
    """Return 1 for the right name; for demonstrations always 1."""
    success = task.private["shown"] or trajectory.final_text.strip() == task.private["right"]
    return Score(float(success), success=success)
