"""Twenty questions about a thing of a known list: each has properties, a question asks for one.

Ends: terminated with a guess, right or wrong; truncated after twenty questions.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from whetstone.environments.game_tasks import GameTasks
from whetstone.environments.native.plain_game import PlainGame
from whetstone.environments.protocol import GameObservation
from whetstone.trajectory import Task

_TABLE = """
dog: alive animal legs fur pet mammal
cat: alive animal legs fur pet mammal small
mouse: alive animal legs fur small mammal
horse: alive animal legs fur big mammal farm
cow: alive animal legs big mammal farm food
lion: alive animal legs fur big mammal wild
elephant: alive animal legs big mammal wild
whale: alive animal big mammal wild water
shark: alive animal big wild water
goldfish: alive animal small pet water
salmon: alive animal wild water food
duck: alive animal legs wings water farm food
eagle: alive animal legs wings wild
parrot: alive animal legs wings pet
bee: alive animal legs wings small
ant: alive animal legs small
snake: alive animal wild
turtle: alive animal legs pet water
oak: alive plant big wood
rose: alive plant small
grass: alive plant small farm
apple: plant food small round farm
orange: plant food small round
carrot: plant food farm
bread: food
cheese: food farm
egg: food small round
soup: food water
chair: legs wood house
table: legs wood house big
bed: legs wood house big cloth
door: wood house big
pencil: wood small
guitar: wood music
piano: wood music big legs house
drum: music round
violin: wood music small
car: big metal wheels
bicycle: metal wheels
train: big metal wheels music
plane: big metal wheels wings
boat: big wood water
ship: big metal water
knife: metal small house
coin: metal small round
key: metal small
clock: metal house round
lamp: metal house
ball: round
balloon: round small
shirt: cloth
sock: cloth small
curtain: cloth house big
pillow: cloth house
window: house big
bottle: small water house
"""
THINGS: dict[str, frozenset[str]] = {
    name: frozenset(said.split()) for name, said in (line.split(":") for line in _TABLE.strip().splitlines())
}
PROPERTIES = tuple(sorted(set().union(*THINGS.values())))


class TwentyQuestions(PlainGame):
    """One thing.

    Args:
        max_questions: Questions there are.
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
        """A new thing."""
        self.secret, self.things = task.private["thing"], tuple(task.private["things"])
        self.known, self.asked, self.guessed = {}, 0, ""
        return GameObservation("one of: " + " ".join(self.things))

    def act(self, command: str) -> GameObservation:
        """A question, or the guess."""
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
        """Whether it was guessed, and how soon."""
        right = self.guessed == self.secret
        score = 1 - self.asked / (2 * self.max_questions) if right else 0.0
        return {"success": right, "score": score, "questions": self.asked}

    def admissible(self) -> list[str]:
        """Every question and every guess."""
        return [f"ask {name}" for name in PROPERTIES] + [f"guess {name}" for name in self.things]

    def solve(self) -> str:
        """The question that halves best what is left; the guess where one is left, or none can be told apart."""
        left = [t for t in self.things if all((p in THINGS[t]) == yes for p, yes in self.known.items())]
        uneven = {p: abs(2 * sum(p in THINGS[t] for t in left) - len(left)) for p in PROPERTIES}
        best = min(PROPERTIES, key=lambda p: (uneven[p], p))
        return f"guess {(left or [self.secret])[0]}" if len(left) <= 1 or uneven[best] == len(left) else f"ask {best}"


class TwentyQuestionsTasks(GameTasks):
    """Level 1 is among 8 things, level 2 among 16, level 3 among all; each can be told from the others.

    Args:
        seed: As of `Generated`.
        levels: As of `Generated`.
    """

    name = "twenty_questions"
    game = TwentyQuestions

    def make(self, draw: Random, level: int) -> Task:
        """See `Generated`."""
        distinct = list({said: name for name, said in THINGS.items()}.values())
        things = draw.sample(distinct, min(len(distinct), (8, 16, 64)[level - 1]))
        thing = draw.choice(things)
        return Task("", "", {"thing": thing, "things": sorted(things)}, {"kind": f"{len(things)} things"})
