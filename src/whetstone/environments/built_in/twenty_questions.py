"""Twenty questions about an object of a known list: each has properties, and a question names one property.

Ends: terminated with a guess, right or wrong; truncated after twenty questions.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from random import Random
from typing import Any

from whetstone.environments.built_in.game_base import PlainGame
from whetstone.environments.game_tasks import GameTasks
from whetstone.environments.protocol import GameObservation
from whetstone.trajectory import Task

THINGS: dict[str, frozenset[str]] = {
    name: frozenset(properties.split())
    for name, properties in tomllib.loads((files(__package__) / "twenty_questions.toml").read_text("utf-8")).items()
}
"""Properties of each object."""
PROPERTIES = tuple(sorted(set().union(*THINGS.values())))
"""All properties that a question can name."""


class TwentyQuestions(PlainGame):
    """Game of questions about a secret object of a known list.

    Args:
        max_questions: Maximum number of questions.
    """

    name = "twenty_questions"
    instruction = (
        "I think of a thing. Commands: ask PROPERTY, and once guess THING. "
        f"Properties: {' '.join(PROPERTIES)}. Things: {' '.join(THINGS)}."
    )

    def __init__(self, *, max_questions: int = 20) -> None:
        self.max_questions = max_questions
        self.secret = ""
        self.things: tuple[str, ...] = ()
        self.known: dict[str, bool] = {}
        self.asked = 0
        self.guessed = ""

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Start with the secret object of the task and return the candidates."""
        self.secret, self.things = task.private["thing"], tuple(task.private["things"])
        self.known, self.asked, self.guessed = {}, 0, ""
        return GameObservation("one of: " + " ".join(self.things))

    def act(self, command: str) -> GameObservation:
        """Execute a question about a property, or the only guess."""
        verb, _, what = command.strip().lower().partition(" ")
        if verb == "guess" and what in THINGS:
            self.guessed = what
            right = what == self.secret
            return GameObservation("right" if right else f"no, {self.secret}", float(right), terminated=True)
        self.asked += 1
        late = self.asked >= self.max_questions
        if verb == "ask" and what in PROPERTIES:
            self.known[what] = what in THINGS[self.secret]
            return GameObservation("yes" if self.known[what] else "no", 0.0, truncated=late)
        return GameObservation("write: ask PROPERTY, or guess THING", 0.0, understood=False, truncated=late)

    def verdict(self) -> Mapping[str, Any]:
        """Return whether the object was guessed, and the number of questions.

        The score decreases with the number of questions, from 1 to 0.5.
        """
        right = self.guessed == self.secret
        score = 1 - self.asked / (2 * self.max_questions) if right else 0.0
        return {"success": right, "score": score, "questions": self.asked}

    def admissible(self) -> list[str]:
        """Return every question, and a guess of every candidate."""
        return [f"ask {name}" for name in PROPERTIES] + [f"guess {name}" for name in self.things]

    def solve(self) -> str:
        """Return the question that splits the candidates best, or the guess."""
        left = [t for t in self.things if all((p in THINGS[t]) == yes for p, yes in self.known.items())]
        uneven = {p: abs(2 * sum(p in THINGS[t] for t in left) - len(left)) for p in PROPERTIES}
        best = min(PROPERTIES, key=lambda p: (uneven[p], p))
        return f"guess {(left or [self.secret])[0]}" if len(left) <= 1 or uneven[best] == len(left) else f"ask {best}"


class TwentyQuestionsTasks(GameTasks):
    """Task source of lists of 8, 16 and up to 64 objects at levels 1, 2 and 3.

    The properties of the objects distinguish them.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
    """

    name = "twenty_questions"
    game = TwentyQuestions

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        distinct = list({properties: name for name, properties in THINGS.items()}.values())
        things = draw.sample(distinct, min(len(distinct), (8, 16, 64)[level - 1]))
        thing = draw.choice(things)
        return Task("", "", {"thing": thing, "things": sorted(things)}, {"kind": f"{len(things)} things"})
