"""A household in text: find objects, carry them, heat, cool or clean them, and put them in place.

The six task types of ALFWorld, over a built-in world with its commands and its numbering.

Ends: terminated when the task is done; truncated after `max_steps`.

Source: ALFWorld, arXiv:2010.03768; rooms, objects and texts are original.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from whetstone.environments.built_in.game_base import PlainGame
from whetstone.environments.game_tasks import GameTasks
from whetstone.environments.protocol import GameObservation
from whetstone.trajectory import Task, Trajectory

OPENED = ("fridge", "microwave", "drawer", "cabinet")
"""Receptacles that are closed at the start, by the first word of their name."""
CHANGES = {"heat": "microwave", "cool": "fridge", "clean": "sinkbasin"}
"""Receptacle that a change of an object requires."""
STATES = {"heat": "hot", "cool": "cool", "clean": "clean"}
"""State of an object after a change."""
FOOD = ("apple", "potato", "tomato", "egg", "bread")
DISHES = ("mug", "plate", "fork", "pan", "bowl")
OTHERS = ("book", "pen", "keychain", "watch", "newspaper")
KINDS = ("place", "light", "clean", "heat", "cool", "two")
_COMMANDS = re.compile(
    r"(?P<verb>go to|open|close|examine|use) (?P<where>[a-z]+ \d+)|take (?P<taken>[a-z]+ \d+) from (?P<from>[a-z]+ \d+)"
    r"|put (?P<put>[a-z]+ \d+) in/on (?P<to>[a-z]+ \d+)|(?P<change>heat|cool|clean) (?P<changed>[a-z]+ \d+) with "
    r"(?P<with>[a-z]+ \d+)|(?P<plain>look|inventory)"
)


_PUT = re.compile(r"You put (?P<thing>[a-z]+) \d+ in/on (?P<where>[a-z]+ \d+)\.")


class Household(PlainGame):
    """Household game in a room of receptacles with objects in or on them.

    Args:
        max_steps: Number of commands after which the game is truncated.
    """

    name = "household"
    instruction = (
        "Commands: go to X, open X, close X, take O from X, put O in/on X, heat O with X, cool O with X, "
        "clean O with X, use X, examine X, look, inventory."
    )

    def __init__(self, *, max_steps: int = 50) -> None:
        self.max_steps = max_steps
        self.goal: dict[str, str] = {}
        self.places: dict[str, list[str]] = {}
        self.open: dict[str, bool] = {}
        self.states: dict[str, str] = {}
        self.at, self.held, self.lit = "", "", ""
        self.looked: set[str] = set()
        """Receptacles whose content the player has seen."""
        self.steps = 0

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Start in the middle of the room; return the receptacles and the task."""
        self.goal = dict(task.private["goal"])
        self.places = {name: list(things) for name, things in task.private["places"].items()}
        self.open = {name: not name.startswith(OPENED) for name in self.places}
        self.states, self.at, self.held, self.lit, self.steps, self.looked = {}, "", "", "", 0, set()
        return GameObservation(
            f"You are in a room. You see {', '.join(self.places)}. Your task: {task.private['asked']}."
        )

    def act(self, command: str) -> GameObservation:
        """Execute one command; an impossible command changes nothing."""
        self.steps += 1
        late = self.steps >= self.max_steps
        text = self._execute(command.strip().lower())
        if text is None:
            return GameObservation("Nothing happens.", 0.0, understood=False, truncated=late)
        if self._is_done():
            return GameObservation(f"{text} The task is done.", 1.0, terminated=True)
        return GameObservation(text, 0.0, truncated=late)

    def verdict(self) -> Mapping[str, Any]:
        """Return whether the task is done, and the number of commands."""
        done = self._is_done()
        return {"success": done, "score": float(done), "steps": self.steps}

    def admissible(self) -> list[str]:
        """Return the commands that change or show something in the current state."""
        return list(self._list_possible())

    def solve(self) -> str:
        """Return the next command of an expert that searches the receptacles in order."""
        goal, kind = self.goal["thing"], self.goal["kind"]
        if self.held and not self.held.startswith(f"{goal} "):
            return f"put {self.held} in/on {self.at}"
        if self.held:
            if kind in CHANGES and self.states.get(self.held) != STATES[kind]:
                station = next(name for name in self.places if name.startswith(CHANGES[kind]))
                return self._step_toward(station) or f"{kind} {self.held} with {station}"
            if kind == "light":
                lamp = next(name for name in self.places if name.startswith("desklamp"))
                return f"go to {lamp}" if self.at != lamp else f"use {lamp}"
            target = self.goal["target"]
            return self._step_toward(target, opened=True) or f"put {self.held} in/on {target}"
        for name in self.places:
            if name not in self.looked:
                return self._step_toward(name, opened=True) or f"examine {name}"
            things = [t for t in self.places[name] if t.startswith(f"{goal} ") and not self._is_delivered(name)]
            if not things:
                continue  # it was searched already
            return self._step_toward(name, opened=True) or f"take {things[0]} from {name}"
        return "look"

    # ------------------------------------------------------------ rules

    def _execute(self, command: str) -> str | None:
        """Execute a command and return the game's text; None if the command is impossible."""
        match = _COMMANDS.fullmatch(command)
        if match is None:
            return None
        parts = match.groupdict()
        if parts["plain"] == "look":
            return f"You see {', '.join(self.places)}."
        if parts["plain"]:
            return f"You hold {self.held or 'nothing'}."
        if parts["verb"]:
            return self._visit(parts["verb"], parts["where"])
        if parts["taken"]:
            return self._take(parts["taken"], parts["from"])
        if parts["put"]:
            return self._put(parts["put"], parts["to"])
        return self._change(parts["change"], parts["changed"], parts["with"])

    def _visit(self, verb: str, where: str) -> str | None:
        if where not in self.places:
            return None
        if verb == "go to":
            self.at = where
            return f"You are at {where}. {self._describe_inside(where)}"
        if self.at != where:
            return None
        if verb == "open" and not self.open[where]:
            self.open[where] = True
            return f"You open {where}. {self._describe_inside(where)}"
        if verb == "close" and self.open[where] and where.startswith(OPENED):
            self.open[where] = False
            return f"You close {where}."
        if verb == "examine":
            return self._describe_inside(where)
        if verb == "use" and where.startswith("desklamp"):
            self.lit = self.held
            return f"The light of {where} is on."
        return None

    def _take(self, thing: str, where: str) -> str | None:
        if self.held or self.at != where or not self.open[where] or thing not in self.places[where]:
            return None
        self.places[where].remove(thing)
        self.held = thing
        return f"You take {thing} from {where}."

    def _put(self, thing: str, where: str) -> str | None:
        if not thing or self.held != thing or self.at != where or not self.open[where]:
            return None
        self.places[where].append(thing)
        self.held = ""
        return f"You put {thing} in/on {where}."

    def _change(self, change: str, thing: str, station: str) -> str | None:
        if self.held != thing or self.at != station or not station.startswith(CHANGES[change]):
            return None
        self.states[thing] = STATES[change]
        return f"You {change} {thing} with {station}."

    def _describe_inside(self, where: str) -> str:
        if not self.open[where]:
            return "It is closed."
        self.looked.add(where)
        return f"You see {', '.join(self.places[where]) or 'nothing'}."

    def _is_delivered(self, where: str) -> bool:
        """Return whether objects at a receptacle are already in their final place."""
        return self.goal["kind"] == "two" and where == self.goal["target"]

    def _is_done(self) -> bool:
        thing, kind = self.goal["thing"], self.goal["kind"]
        if kind == "light":
            return self.lit.startswith(f"{thing} ")
        delivered = [t for t in self.places[self.goal["target"]] if t.startswith(f"{thing} ")]
        if kind in CHANGES:
            return any(self.states.get(t) == STATES[kind] for t in delivered)
        return len(delivered) >= (2 if kind == "two" else 1)

    def _step_toward(self, where: str, *, opened: bool = False) -> str:
        if self.at != where:
            return f"go to {where}"
        return f"open {where}" if opened and not self.open[where] else ""

    def _list_possible(self) -> Iterator[str]:
        yield from (f"go to {name}" for name in self.places if name != self.at)
        yield from ("look", "inventory")
        if not self.at:
            return
        if self.at.startswith(OPENED):
            yield f"{'close' if self.open[self.at] else 'open'} {self.at}"
        if self.at.startswith("desklamp"):
            yield f"use {self.at}"
        if self.open[self.at]:
            if self.held:
                yield f"put {self.held} in/on {self.at}"
            else:
                yield from (f"take {thing} from {self.at}" for thing in self.places[self.at])
        if self.held:
            yield from (f"{verb} {self.held} with {self.at}" for verb, at in CHANGES.items() if self.at.startswith(at))


def what_was_done(trajectory: Trajectory) -> str | None:
    """Return the first prompt with the task that an episode achieved (hindsight).

    That task is to put the last object into its final place. Return None if the episode put nothing anywhere. Use:
    `data: {relabel: "whetstone.environments.built_in.household:what_was_done"}`.
    """
    texts = [message.text for turn in trajectory.turns for message in turn.observation]
    put = [match for text in texts for match in _PUT.finditer(text)]
    prompt = next((message.text for message in reversed(trajectory.opening) if message.role == "user"), "")
    before, named, _ = prompt.rpartition("Your task: ")
    return f"{before}{named}put a {put[-1]['thing']} in/on {put[-1]['where']}." if put and named else None


class HouseholdTasks(GameTasks):
    """Task source of household tasks in rooms of 5, 8 and 12 receptacles.

    Level 1: place an object or look at it under a lamp. Level 2: heat, cool or clean an object. Level 3: all six types.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
    """

    name = "household"
    game = Household

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        kind = draw.choice((("place", "light"), ("heat", "cool", "clean"), KINDS)[level - 1])
        pool = {"heat": FOOD, "cool": FOOD, "clean": DISHES}.get(kind, FOOD + DISHES + OTHERS)
        thing = draw.choice(pool)
        stations = {"heat": ["microwave 1"], "cool": ["fridge 1"], "clean": ["sinkbasin 1"], "light": ["desklamp 1"]}
        needed = stations.get(kind, [])
        common = [
            f"{name} {k}" for name in ("drawer", "cabinet", "shelf", "countertop", "diningtable") for k in (1, 2, 3)
        ]
        count = (5, 8, 12)[level - 1]
        names = needed + draw.sample(common, count - len(needed))
        draw.shuffle(names)
        places: dict[str, list[str]] = {name: [] for name in names}
        homes = [name for name in names if name not in needed]
        target = draw.choice(homes)
        for home in draw.sample([name for name in homes if name != target], 2 if kind == "two" else 1):
            places[home].append(f"{thing} {1 + sum(len(v) for v in places.values())}")
        numbers = dict.fromkeys(FOOD + DISHES + OTHERS, 0)
        for _ in range(2 * level + 1):
            other = draw.choice([t for t in FOOD + DISHES + OTHERS if t != thing])
            numbers[other] += 1
            places[draw.choice(homes)].append(f"{other} {numbers[other]}")
        goal = {"kind": kind, "thing": thing, "target": target}
        request = {
            "place": f"put a {thing} in/on {target}",
            "two": f"put two {thing}s in/on {target}",
            "light": f"look at a {thing} under the desklamp",
        }.get(kind, f"put a {STATES.get(kind)} {thing} in/on {target}")
        return Task("", "", {"goal": goal, "places": places, "asked": request}, {"kind": kind})
