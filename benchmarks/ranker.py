"""A search in which somebody has to rank: a reasoner asks, a ranker picks a page, the reasoner answers from it.

Reasoner and ranker are the same policy with contexts of their own, or the ranker is a fixed one that is right now and
then. What a person's page says is drawn anew for every task, so that nothing can be known by heart.
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
"""Pages a query brings: one of each relation of the person who was asked for."""


class Pages:
    """One relation of a person is asked for.

    Args:
        sure: How often a demonstration does the right thing, of who asks and of who ranks; who reads is always right.
        shown: Whether whatever comes of a task counts as right; for demonstrations, of which those alone are imitated.
    """

    def __init__(self, *, seed: int = 0, sure: float = 0.6, shown: bool = False) -> None:
        self.seed, self.sure, self.shown = seed, sure, shown

    def task(self, index: int) -> Task:
        """Training question `index`."""
        return self._task("training", self.seed, index)

    def held_out(self, count: int) -> list[Task]:
        """The same whatever the seed."""
        return [self._task("held out", 0, index) for index in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """A relation, a number of a page, or what the page says."""
        who, *said = conversation[-1].text.split()
        draw = derive_random("pages shown", task.id, who, len(conversation))
        right = draw.random() < self.sure
        if who == "ask":
            return assistant(said[0] if right else draw.choice(RELATIONS))
        if who == "rank":
            pages = said[2::2]
            wanted = pages.index(said[0]) if said[0] in pages else draw.randrange(SHOWN)
            return assistant(str(1 + (wanted if right else draw.randrange(SHOWN))))
        return assistant(said[-1])

    def _task(self, *place: Any) -> Task:
        draw = derive_random("pages", *place)
        relation, name = draw.choice(RELATIONS), draw.choice(NAMES)
        where = "/".join(map(str, place))
        private = {"relation": relation, "name": name, "shown": self.shown, "of": f"pages/{where}"}
        return Task(f"pages/{where}", f"ask {relation} {name}", private, {"kind": relation})


class Library:
    """The world of a question. Ends: terminated with an answer.

    Args:
        fixed: How often a fixed ranker picks the right page; null: the policy ranks.
    """

    replayable = False

    def __init__(self, *, fixed: float | None = None) -> None:
        self.fixed = fixed

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """The reasoner is to name a relation."""
        self.asked = (task.private["relation"], task.private["name"])
        self.of, self.draw = task.private["of"], derive_random("library", task.private["of"], seed)
        self.phase, self.query, self.right = "ask", "", False
        self.pages: list[str] = []
        return Observation((user(f"ask {' '.join(self.asked)}"),))

    async def step(self, action: Message) -> StepResult:
        """A query, the number of a page, or an answer."""
        said = action.text.strip()
        if self.phase == "ask":
            self.query = said if said in RELATIONS else "nothing"
            self.pages = self.draw.sample(RELATIONS, SHOWN)
            if self.fixed is None:
                self.phase = "rank"
                listed = " ".join(f"{k} {page}" for k, page in enumerate(self.pages, 1))
                return StepResult(Observation((user(f"rank {self.query} {listed}"),), conversation=NEW_CONVERSATION))
            best = self.pages.index(self.query) if self.query in self.pages else 0
            return self._read(best if self.draw.random() < self.fixed else self.draw.randrange(SHOWN))
        if self.phase == "rank":
            return self._read(int(said) - 1 if said in map(str, range(1, SHOWN + 1)) else 0)
        self.right = said == self._says(self.asked[0])
        return StepResult(Observation((user("done"),)), terminated=True)

    def verdict(self) -> Mapping[str, Any]:
        """Whether the answer was right."""
        return {"success": self.right, "score": float(self.right)}

    async def close(self) -> None:
        """Nothing is held."""

    def _read(self, number: int) -> StepResult:
        self.phase = "read"
        page = self.pages[number]
        text = f"read {self.asked[0]} from {page} {self._says(page)}"
        return StepResult(Observation((user(text),), conversation=NEW_CONVERSATION))

    def _says(self, relation: str) -> str:
        return derive_random("says", self.of, relation).choice(NAMES)


async def answered(trajectory: Trajectory, task: Task) -> Score:
    """1 for the right answer."""
    success = task.private["shown"] or bool(trajectory.final.get("success", False))
    return Score(float(success), {"score": float(trajectory.final.get("score", 0.0))}, success=success)
