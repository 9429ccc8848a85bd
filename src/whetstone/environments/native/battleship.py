"""Battleship against a still fleet: find every ship before the shots run out.

Easy to get wrong: with shots for most of the sea, a sweep from a1 on sinks a fleet without reading an answer. There are
as many as the expert needs where it takes him longest, one more on the largest sea: the sweep wins 55, 33 and 26 % of
the three levels, shots by chance 42, 14 and 9 %.

Ends: terminated when every ship is sunk; truncated when the shots are gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from random import Random
from typing import Any

from whetstone.environments.game_tasks import GameTasks
from whetstone.environments.native.plain_game import PlainGame
from whetstone.environments.protocol import GameObservation
from whetstone.trajectory import Task

_ROWS = "abcdefgh"


class Battleship(PlainGame):
    """A sea of squares `a1` to the last; ships lie in rows or columns and do not overlap."""

    name = "battleship"
    instruction = "Sink every ship. A command is a square, such as b3; it is answered with miss, hit or sunk."

    def __init__(self) -> None:
        self.side = 0
        self.ships: list[list[str]] = []
        self.shots: dict[str, str] = {}
        self.fired = self.most = 0

    def begin(self, task: Task, seed: int) -> GameObservation:
        """A new sea."""
        self.side, self.ships = task.private["side"], [list(ship) for ship in task.private["ships"]]
        self.shots, self.fired, self.most = {}, 0, task.private["shots"]
        lengths = " ".join(str(len(ship)) for ship in self.ships)
        return GameObservation(f"sea a1 to {_ROWS[self.side - 1]}{self.side}; ships of {lengths}; {self.most} shots")

    def act(self, command: str) -> GameObservation:
        """One shot."""
        square = command.strip().lower()
        self.fired += 1
        late = self.fired >= self.most
        if square not in squares_of(self.side):
            return GameObservation(f"no such square: {square}", 0.0, understood=False, truncated=late)
        if square in self.shots:
            return GameObservation("there was a shot already", 0.0, truncated=late)
        ship = next((ship for ship in self.ships if square in ship), None)
        self.shots[square] = "miss" if ship is None else "hit"
        if ship is None:
            return GameObservation("miss", 0.0, truncated=late)
        if all(part in self.shots for part in ship):
            for part in ship:
                self.shots[part] = "sunk"
            if self._sunk() == len(self.ships):
                return GameObservation("sunk, the last one", 1 / len(self.ships), terminated=True)
            return GameObservation(f"sunk, of {len(ship)}", 1 / len(self.ships), truncated=late)
        return GameObservation("hit", 0.0, truncated=late)

    def verdict(self) -> Mapping[str, Any]:
        """How many ships were sunk."""
        share = self._sunk() / max(1, len(self.ships))
        return {"success": share == 1, "score": share, "shots": self.fired}

    def admissible(self) -> list[str]:
        """Squares nobody shot at."""
        return [square for square in squares_of(self.side) if square not in self.shots]

    def solve(self) -> str:
        """The square that most places of the ships that are left would cover, with what is known."""
        left = sorted(len(ship) for ship in self.ships if not all(self.shots.get(p) == "sunk" for p in ship))
        weight = dict.fromkeys(self.admissible(), 0)
        for length in left:
            for place in places_of(self.side, length):
                said = [self.shots.get(square) for square in place]
                if "miss" in said or "sunk" in said:
                    continue
                for square in place:
                    if square in weight:
                        weight[square] += 1 + 50 * said.count("hit")
        return max(weight, key=lambda square: (weight[square], square))

    def _sunk(self) -> int:
        return sum(all(self.shots.get(part) == "sunk" for part in ship) for ship in self.ships)


class BattleshipTasks(GameTasks):
    """Seas of 4, 5 and 6 squares a side with one, two and three ships.

    Args:
        seed: As of `Generated`.
        levels: As of `Generated`.
    """

    name = "battleship"
    game = Battleship

    def make(self, draw: Random, level: int) -> Task:
        """See `Generated`."""
        side, lengths = 3 + level, ((2,), (3, 2), (3, 3, 2))[level - 1]
        ships: list[tuple[str, ...]] = []
        for length in lengths:
            taken = {square for ship in ships for square in ship}
            ships.append(draw.choice([place for place in places_of(side, length) if not taken & set(place)]))
        private = {"side": side, "ships": [list(ship) for ship in ships], "shots": (10, 17, 27)[level - 1]}
        return Task("", "", private, {"kind": f"{len(lengths)} ship{'s' if level > 1 else ''}"})


def squares_of(side: int) -> list[str]:
    """Every square, row by row."""
    return [f"{row}{column}" for row in _ROWS[:side] for column in range(1, side + 1)]


def places_of(side: int, length: int) -> list[tuple[str, ...]]:
    """Where a ship of a length can lie."""
    places = []
    for row, column in product(range(side), repeat=2):
        if column + length <= side:
            places.append(tuple(f"{_ROWS[row]}{column + k + 1}" for k in range(length)))
        if row + length <= side:
            places.append(tuple(f"{_ROWS[row + k]}{column + 1}" for k in range(length)))
    return places
