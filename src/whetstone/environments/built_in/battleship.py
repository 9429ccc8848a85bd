"""Battleship against a static fleet: sink every ship before the shots run out.

Note:
    With shots for most of the sea, a sweep from a1 sinks the fleet without reading an answer. The number of shots is
    the maximum that the expert needs, plus one on the largest sea. The sweep wins 55, 33 and 26 % of the three
    levels, random shots 42, 14 and 9 %.

Ends: terminated when every ship is sunk; truncated when the shots are used up.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from random import Random
from typing import Any

from whetstone.environments.built_in.game_base import PlainGame
from whetstone.environments.game_tasks import GameTasks
from whetstone.environments.protocol import GameObservation
from whetstone.trajectory import Task

_ROWS = "abcdefgh"


class Battleship(PlainGame):
    """Battleship on a grid of squares from `a1`.

    Ships are placed in rows or columns, do not overlap and do not move.
    """

    name = "battleship"
    instruction = "Sink every ship. A command is a square, such as b3; it is answered with miss, hit or sunk."

    def __init__(self) -> None:
        self.side = 0
        self.ships: list[list[str]] = []
        self.shots: dict[str, str] = {}
        self.fired = self.most = 0

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Start with the fleet of the task; return its size and the number of shots."""
        self.side, self.ships = task.private["side"], [list(ship) for ship in task.private["ships"]]
        self.shots, self.fired, self.most = {}, 0, task.private["shots"]
        lengths = " ".join(str(len(ship)) for ship in self.ships)
        return GameObservation(f"sea a1 to {_ROWS[self.side - 1]}{self.side}; ships of {lengths}; {self.most} shots")

    def act(self, command: str) -> GameObservation:
        """Execute one shot; the reward is the fraction of ships that it sinks."""
        square = command.strip().lower()
        self.fired += 1
        late = self.fired >= self.most
        if square not in list_squares(self.side):
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
        """Return the fraction of sunk ships and the number of shots.

        All ships are a success.
        """
        share = self._sunk() / max(1, len(self.ships))
        return {"success": share == 1, "score": share, "shots": self.fired}

    def admissible(self) -> list[str]:
        """Return the squares that were not shot at."""
        return [square for square in list_squares(self.side) if square not in self.shots]

    def solve(self) -> str:
        """Return the square that most possible placements of the remaining ships cover."""
        left = sorted(len(ship) for ship in self.ships if not all(self.shots.get(p) == "sunk" for p in ship))
        weight = dict.fromkeys(self.admissible(), 0)
        for length in left:
            for place in ship_placements(self.side, length):
                marks = [self.shots.get(square) for square in place]
                if "miss" in marks or "sunk" in marks:
                    continue
                for square in place:
                    if square in weight:
                        weight[square] += 1 + 50 * marks.count("hit")
        return max(weight, key=lambda square: (weight[square], square))

    def _sunk(self) -> int:
        return sum(all(self.shots.get(part) == "sunk" for part in ship) for ship in self.ships)


class BattleshipTasks(GameTasks):
    """Task source of seas of 4, 5 and 6 squares per side at levels 1, 2 and 3.

    The fleet has 1, 2 and 3 ships.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
    """

    name = "battleship"
    game = Battleship

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        side, lengths = 3 + level, ((2,), (3, 2), (3, 3, 2))[level - 1]
        ships: list[tuple[str, ...]] = []
        for length in lengths:
            taken = {square for ship in ships for square in ship}
            ships.append(draw.choice([place for place in ship_placements(side, length) if not taken & set(place)]))
        private = {"side": side, "ships": [list(ship) for ship in ships], "shots": (10, 17, 27)[level - 1]}
        return Task("", "", private, {"kind": f"{len(lengths)} ship{'s' if level > 1 else ''}"})


def list_squares(side: int) -> list[str]:
    """Return every square of a grid, row by row, such as `a1`."""
    return [f"{row}{column}" for row in _ROWS[:side] for column in range(1, side + 1)]


def ship_placements(side: int, length: int) -> list[tuple[str, ...]]:
    """Return the possible placements of a ship as lists of squares.

    Args:
        side: Squares per side of the grid.
        length: Length of the ship in squares.
    """
    places = []
    for row, column in product(range(side), repeat=2):
        if column + length <= side:
            places.append(tuple(f"{_ROWS[row]}{column + k + 1}" for k in range(length)))
        if row + length <= side:
            places.append(tuple(f"{_ROWS[row + k]}{column + 1}" for k in range(length)))
    return places
