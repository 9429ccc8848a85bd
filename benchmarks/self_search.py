"""A family the policy half knows: it can look a relation up, or write down what it would find.

The warm-up shows how to search, how to answer from what was found (wrong now and then), and what pages say, right three
times in four; so both what is written and what is made of it can become better.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from planner import NAMES, RELATIONS, look_up
from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.seeding import derive_random
from whetstone.trajectory import Score, Task, Trajectory

KNOWN, COPIED = 0.75, 0.6
"""How often the warm-up writes the right page, and answers with what was found."""


def search(query: str) -> str:
    """Look a relation of a person up.

    Args:
        query: Relation and name.
    """
    words = query.split()
    return look_up(*words) if len(words) == 2 else "nothing"


class Family:
    """Who is whose boss, mother or friend.

    Args:
        pages: Share of training tasks that ask to write a page; for demonstrations.
    """

    def __init__(self, *, seed: int = 0, pages: float = 0.0) -> None:
        self.seed, self.pages = seed, pages

    def task(self, index: int) -> Task:
        """Training question `index`."""
        return self._task("training", self.seed, index)

    def held_out(self, count: int) -> list[Task]:
        """The same whatever the seed."""
        return [self._task("held out", 0, index) for index in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """A search and an answer, or a page."""
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
        asked = f"{relation} {name}"
        private = {"right": look_up(relation, name), "asked": asked, "shown": self.pages > 0}
        text = f"write {asked}" if page else f"{asked}?"
        return Task(f"family/{split}/{seed}/{index}", text, private, {"kind": "page" if page else "question"})


async def named(trajectory: Trajectory, task: Task) -> Score:
    """1 for the right name; for demonstrations whatever was said."""
    success = task.private["shown"] or trajectory.final_text.strip() == task.private["right"]
    return Score(float(success), success=success)
