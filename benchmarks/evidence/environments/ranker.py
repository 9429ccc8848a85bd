"""Search with a ranker: a reasoner sends a query, a ranker picks a page, and the reasoner answers from it.

Reasoner and ranker are the same policy with separate contexts, or the ranker is fixed and right with some probability.
The content of the pages is random per task, so that it cannot be memorized.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner import NAMES, RELATIONS
from whetstone.chat import Message, ToolSpec, assistant, user
from whetstone.environments.protocol import NEW_CONVERSATION, Observation, StepResult
from whetstone.seeding import derive_random
from whetstone.trajectory import Score, Task, Trajectory

SHOWN = 3
"""Number of pages per query: one per relation of the person."""


class Pages:
    """Task source of questions for one relation of a person.

    Args:
        sure: Probability that a demonstrated query or ranking is right; demonstrated answers are always right.
        shown: Whether every result counts as right; for demonstrations, because only successful ones are imitated.
    """

    def __init__(self, *, seed: int = 0, sure: float = 0.6, shown: bool = False) -> None:
        self.seed, self.sure, self.shown = seed, sure, shown

    def task(self, index: int) -> Task:
        """Return training question `index`."""
        return self._task("training", self.seed, index)

    def held_out(self, count: int) -> list[Task]:
        """Return held-out questions, which do not depend on the seed."""
        return [self._task("held out", 0, index) for index in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return a relation, the number of a page, or the name on the page."""
        who, *words = conversation[-1].text.split()
        draw = derive_random("pages shown", task.id, who, len(conversation))
        right = draw.random() < self.sure
        if who == "ask":
            return assistant(words[0] if right else draw.choice(RELATIONS))
        if who == "rank":
            pages = words[2::2]
            index = pages.index(words[0]) if words[0] in pages else draw.randrange(SHOWN)
            return assistant(str(1 + (index if right else draw.randrange(SHOWN))))
        return assistant(words[-1])

    def _task(self, *place: Any) -> Task:
        draw = derive_random("pages", *place)
        relation, name = draw.choice(RELATIONS), draw.choice(NAMES)
        where = "/".join(map(str, place))
        private = {"relation": relation, "name": name, "shown": self.shown, "of": f"pages/{where}"}
        return Task(f"pages/{where}", f"ask {relation} {name}", private, {"kind": relation})


class Library:
    """Environment of a question. Episodes terminate with an answer.

    Args:
        fixed: Probability that a fixed ranker picks the right page; null for ranking by the policy.
    """

    replayable = False

    def __init__(self, *, fixed: float | None = None) -> None:
        self.fixed = fixed

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Return the question for the reasoner."""
        self.question = (task.private["relation"], task.private["name"])
        self.of, self.draw = task.private["of"], derive_random("library", task.private["of"], seed)
        self.phase, self.query, self.right = "ask", "", False
        self.pages: list[str] = []
        return Observation((user(f"ask {' '.join(self.question)}"),))

    async def step(self, action: Message) -> StepResult:
        """Handle a query, the number of a page, or an answer."""
        text = action.text.strip()
        if self.phase == "ask":
            self.query = text if text in RELATIONS else "nothing"
            self.pages = self.draw.sample(RELATIONS, SHOWN)
            if self.fixed is None:
                self.phase = "rank"
                listed = " ".join(f"{k} {page}" for k, page in enumerate(self.pages, 1))
                return StepResult(Observation((user(f"rank {self.query} {listed}"),), conversation=NEW_CONVERSATION))
            best = self.pages.index(self.query) if self.query in self.pages else 0
            return self._read(best if self.draw.random() < self.fixed else self.draw.randrange(SHOWN))
        if self.phase == "rank":
            return self._read(int(text) - 1 if text in map(str, range(1, SHOWN + 1)) else 0)
        self.right = text == self._says(self.question[0])
        return StepResult(Observation((user("done"),)), terminated=True)

    def verdict(self) -> Mapping[str, Any]:
        """Return whether the answer was right."""
        return {"success": self.right, "score": float(self.right)}

    async def close(self) -> None:
        """Release nothing."""

    def _read(self, number: int) -> StepResult:
        self.phase = "read"
        page = self.pages[number]
        text = f"read {self.question[0]} from {page} {self._says(page)}"
        return StepResult(Observation((user(text),), conversation=NEW_CONVERSATION))

    def _says(self, relation: str) -> str:
        return derive_random("says", self.of, relation).choice(NAMES)


async def answered(trajectory: Trajectory, task: Task) -> Score:
    """Return 1 for the right answer."""
    success = task.private["shown"] or bool(trajectory.final.get("success", False))
    return Score(float(success), {"score": float(trajectory.final.get("score", 0.0))}, success=success)
