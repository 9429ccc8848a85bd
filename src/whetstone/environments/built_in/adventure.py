"""A text adventure: rooms, doors, locks and keys, and a treasure.

Ends: terminated when the treasure is taken; truncated after `max_steps`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

from whetstone.environments.built_in.game_base import PlainGame
from whetstone.environments.game_tasks import GameTasks
from whetstone.environments.protocol import GameObservation
from whetstone.trajectory import Task

WAYS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
"""Directions and their steps on the grid of rooms."""
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}
"""Opposite direction of each direction."""
ROOMS = ("hall", "kitchen", "cellar", "attic", "library", "garden", "studio", "pantry", "bedroom", "workshop")
COLORS = ("red", "blue", "green", "black", "white")
State = tuple[str, frozenset[str], frozenset[tuple[str, str]]]
"""State of the game: (room, carried objects, unlocked doors)."""


class Adventure(PlainGame):
    """Text adventure in a house with locked doors and a hidden treasure.

    Each key opens the doors of its color.

    Args:
        max_steps: Number of commands after which the game is truncated.
    """

    name = "adventure"
    instruction = "Find the treasure. Commands: go WAY, take THING, unlock WAY. Keys open doors of their colour."

    def __init__(self, *, max_steps: int = 40) -> None:
        self.max_steps = max_steps
        self.doors: dict[str, dict[str, str]] = {}
        self.locks: dict[str, dict[str, str]] = {}
        self.things: dict[str, str] = {}
        self.state: State = ("", frozenset(), frozenset())
        self.steps = 0

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Start in the first room, without objects, and return its description."""
        private = task.private
        self.doors, self.locks, self.things = private["doors"], private["locks"], dict(private["things"])
        self.state, self.steps = (private["start"], frozenset(), frozenset()), 0
        return GameObservation(self._seen())

    def act(self, command: str) -> GameObservation:
        """Execute one command; an impossible command changes nothing."""
        self.steps += 1
        late = self.steps >= self.max_steps
        after = self._state_after(self.state, command.strip().lower())
        if after is None:
            return GameObservation(f"You cannot do that. {self._seen()}", 0.0, understood=False, truncated=late)
        self.state = after
        if "treasure" in self.state[1]:
            return GameObservation("You have the treasure.", 1.0, terminated=True)
        return GameObservation(self._seen(), 0.0, truncated=late)

    def verdict(self) -> Mapping[str, Any]:
        """Return whether the treasure was taken, and the score.

        Without the treasure, the score is half the fraction of objects carried and doors unlocked.
        """
        _, carried, unlocked = self.state
        has_treasure = "treasure" in carried
        share = (len(carried) + len(unlocked)) / max(1, len(self.things) + self._locked())
        return {
            "success": has_treasure,
            "score": 1.0 if has_treasure else 0.5 * share,
            "keys": len(carried - {"treasure"}),
        }

    def admissible(self) -> list[str]:
        """Return all commands that are possible in the current state."""
        return [command for command, _ in self._moves(self.state)]

    def solve(self) -> str:
        """Return the first command of a shortest path to the treasure."""
        came: dict[State, tuple[State, str] | None] = {self.state: None}
        queue = deque([self.state])
        while queue:
            state = queue.popleft()
            if "treasure" in state[1]:
                command = "look"
                while (step := came[state]) is not None:
                    state, command = step
                return command
            for command, following in self._moves(state):
                if following not in came:
                    came[following] = (state, command)
                    queue.append(following)
        return "look"

    def _state_after(self, state: State, command: str) -> State | None:
        """Return the state after a command; None if the command is impossible."""
        return next((following for name, following in self._moves(state) if name == command), None)

    def _moves(self, state: State) -> Iterable[tuple[str, State]]:
        """Yield the possible commands of a state with the following state."""
        room, carried, unlocked = state
        for way, other in self.doors[room].items():
            color = self.locks[room].get(way)
            if color is None or (room, way) in unlocked:
                yield f"go {way}", (other, carried, unlocked)
            elif f"{color} key" in carried:
                both = unlocked | {(room, way), (other, BACK[way])}
                yield f"unlock {way}", (room, carried, both)
        for thing, place in self.things.items():
            if place == room and thing not in carried:
                yield f"take {thing}", (room, carried | {thing}, unlocked)

    def _locked(self) -> int:
        return sum(len(locks) for locks in self.locks.values())

    def _seen(self) -> str:
        room, carried, unlocked = self.state
        doors = []
        for way in self.doors[room]:
            color = self.locks[room].get(way)
            doors.append(way if color is None or (room, way) in unlocked else f"{way} locked {color}")
        things = [thing for thing, place in self.things.items() if place == room and thing not in carried]
        text = f"{room}. doors: {', '.join(doors)}."
        text += f" here: {', '.join(things)}." if things else ""
        return text + (f" you have: {', '.join(sorted(carried))}." if carried else "")


class AdventureTasks(GameTasks):
    """Task source of houses of 4, 6 and 9 rooms at levels 1, 2 and 3.

    On the path to the treasure, 0, 1 and 2 doors are locked.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
    """

    name = "adventure"
    game = Adventure

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        count, locked = (4, 6, 9)[level - 1], level - 1
        while True:
            doors, order = _house(draw, count)
            # a lock on the only door of a room closes it off
            start, places = order[0], order[1:]
            last = next(room for room in reversed(order) if len(doors[room]) == 1 and room != start)
            things = {"treasure": last}
            locks: dict[str, dict[str, str]] = {room: {} for room in order}
            target = last
            for color in draw.sample(COLORS, locked):
                ((way, other),) = doors[target].items()
                locks[target][way] = locks[other][BACK[way]] = color
                ends = [room for room in places if room not in things.values() and not locks[room]]
                ends = [room for room in ends if len(doors[room]) == 1]
                if not ends:
                    break
                target = draw.choice(ends)
                things[f"{color} key"] = target
            else:
                break
        keys = list(things.items())
        draw.shuffle(keys)
        private = {"doors": doors, "locks": locks, "things": dict(keys), "start": start}
        return Task("", "", private, {"kind": f"{locked} lock{'' if locked == 1 else 's'}"})


def _house(draw: Random, count: int) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Generate rooms that form a tree on a grid.

    Returns:
        Room → direction → next room, and the rooms in order of creation.
    """
    names = draw.sample(ROOMS, count)
    places = {(0, 0): names[0]}
    doors: dict[str, dict[str, str]] = {names[0]: {}}
    for name in names[1:]:
        while True:
            (x, y), room = draw.choice(list(places.items()))
            way, (dx, dy) = draw.choice(list(WAYS.items()))
            if (x + dx, y + dy) not in places:
                break
        places[x + dx, y + dy] = name
        doors[room][way] = name
        doors[name] = {BACK[way]: room}
    return doors, names
