"""FrozenLake in text: across the ice to the goal, around the holes.

Ends: terminated in a hole or at the goal; truncated after `max_steps`.

Source: the game of Gymnasium's toy texts; maps are generated for each task, and the ice is not slippery.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from random import Random
from typing import Any, Literal

from whetstone.environments.built_in.game_base import PlainGame
from whetstone.environments.game_tasks import GameTasks
from whetstone.environments.protocol import GameObservation
from whetstone.plugins import OptionError
from whetstone.trajectory import Task

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
"""Moves and their steps (rows down, columns right)."""
Place = tuple[int, int]


class FrozenLake(PlainGame):
    """Walk over a lake of ice `.` with holes `O`, from the player `P` to the goal `G`.

    Args:
        view: `map`: the whole lake. `around`: the distance to the goal and the four adjacent squares, which is the
            information of the map that a one-step lookahead uses.
        max_steps: Number of moves after which the game is truncated.
    """

    name = "frozen_lake"
    instruction = "Walk to the goal G without falling into a hole O. Commands: up, down, left, right."
    commands = tuple(MOVES)

    def __init__(self, *, view: Literal["map", "around"] = "map", max_steps: int = 30) -> None:
        self.view, self.max_steps = view, max_steps
        self.lake: list[str] = []
        self.player: Place = (0, 0)
        self.goal: Place = (0, 0)
        self.steps = 0

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Start at the start square of the task and return the view."""
        self.lake = list(task.private["lake"])
        self.player, self.goal = tuple(task.private["start"]), tuple(task.private["goal"])
        self.steps = 0
        return GameObservation(self._seen())

    def act(self, command: str) -> GameObservation:
        """Execute one move; a move against the edge changes nothing."""
        command = command.lower()
        if command not in MOVES:
            return GameObservation(
                f"no such move: {command}. {self._seen()}", 0.0, understood=False, truncated=self._late()
            )
        down, right = MOVES[command]
        target = (self.player[0] + down, self.player[1] + right)
        late = self._late()
        if self._at(target) != "edge":
            self.player = target
        if self.player == self.goal:
            return GameObservation("You are at the goal.", 1.0, terminated=True)
        if self._at(self.player) == "hole":
            return GameObservation("You fell into a hole.", 0.0, terminated=True)
        return GameObservation(self._seen(), 0.0, truncated=late)

    def verdict(self) -> Mapping[str, Any]:
        """Return whether the goal was reached, and the number of moves."""
        is_at_goal = self.player == self.goal
        return {"success": is_at_goal, "score": float(is_at_goal), "steps": self.steps}

    def admissible(self) -> list[str]:
        """Return the moves that do not end in a hole or against the edge."""
        neighbors = {name: (self.player[0] + d, self.player[1] + r) for name, (d, r) in MOVES.items()}
        return [name for name, place in neighbors.items() if self._at(place) in ("ice", "goal")]

    def solve(self) -> str:
        """Return the first move of a shortest path to the goal."""
        way = shortest_path(self.lake, self.player, self.goal)
        return way[0] if way else "up"

    def _late(self) -> bool:
        self.steps += 1
        return self.steps >= self.max_steps

    def _at(self, place: Place) -> str:
        row, column = place
        if not (0 <= row < len(self.lake) and 0 <= column < len(self.lake[0])):
            return "edge"
        if place == self.goal:
            return "goal"
        return "hole" if self.lake[row][column] == "O" else "ice"

    def _seen(self) -> str:
        if self.view == "map":
            marks = {self.player: "P", self.goal: "G"}
            rows = ("".join(marks.get((r, c), mark) for c, mark in enumerate(row)) for r, row in enumerate(self.lake))
            return "\n".join(rows)
        down, right = self.goal[0] - self.player[0], self.goal[1] - self.player[1]
        far = [f"{abs(down)} {'down' if down > 0 else 'up'}"] if down else []
        far += [f"{abs(right)} {'right' if right > 0 else 'left'}"] if right else []
        sides = (f"{name} {self._at((self.player[0] + d, self.player[1] + r))}" for name, (d, r) in MOVES.items())
        return f"goal {' '.join(far)}; {' '.join(sides)}"


class FrozenLakeTasks(GameTasks):
    """Task source of lakes of 4, 5 and 6 squares per side at levels 1, 2 and 3.

    There is a path to the goal, and about a quarter of the squares are holes.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
        side: Squares per side instead of levels, 3 to 40.
        holes: Fraction of squares that are holes, in [0, 0.4].
        moves: Minimum and maximum length of the shortest path; null: side − 1 and twice the side.

    Raises:
        OptionError: If an option is out of range, or no such path exists.
    """

    name = "frozen_lake"
    game = FrozenLake

    def __init__(
        self,
        *,
        seed: int = 0,
        levels: list[int] | None = None,
        side: int | None = None,
        holes: float = 0.25,
        moves: tuple[int, int] | None = None,
    ) -> None:
        if side is not None and levels is not None:
            raise OptionError("side", "cannot be combined with levels; set only one of them")
        if side is not None and not 3 <= side <= 40:
            raise OptionError("side", f"must be 3 to 40 squares, got {side}")
        if not 0 <= holes <= 0.4:
            raise OptionError("holes", f"must be a fraction from 0 to 0.4, got {holes}")
        if moves is not None and not 1 <= moves[0] <= moves[1] <= 2 * ((side or 4) - 1):
            raise OptionError(
                "moves", f"must be [fewest, most] within 1 and {2 * ((side or 4) - 1)}, got {list(moves)}"
            )
        super().__init__(seed=seed, levels=[1] if side is not None else levels)
        self.side, self.holes, self.moves = side, holes, moves

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        side = self.side or 3 + level
        fewest, most = self.moves or (side - 1, 2 * side)
        places = [(r, c) for r in range(side) for c in range(side)]
        while True:
            lake = ["".join("O" if draw.random() < self.holes else "." for _ in range(side)) for _ in range(side)]
            start, goal = draw.sample(places, 2)
            way = shortest_path(lake, start, goal)
            if way is not None and lake[start[0]][start[1]] == "." and fewest <= len(way) <= most:
                break
        private = {"lake": lake, "start": list(start), "goal": list(goal), "expert_turns": len(way)}
        return Task("", "", private, {"kind": f"{side} a side"})


def shortest_path(lake: list[str], start: Place, goal: Place) -> list[str] | None:
    """Return the moves of a shortest path over ice; None if there is no path.

    Args:
        lake: Rows of the lake; `O` is a hole.
        start: First square, (row, column).
        goal: Last square, (row, column).
    """
    ways: dict[Place, list[str]] = {start: []}
    queue = deque([start])
    while queue:
        place = queue.popleft()
        if place == goal:
            return ways[place]
        for name, (down, right) in MOVES.items():
            neighbor = (place[0] + down, place[1] + right)
            inside = 0 <= neighbor[0] < len(lake) and 0 <= neighbor[1] < len(lake[0])
            if inside and neighbor not in ways and (neighbor == goal or lake[neighbor[0]][neighbor[1]] != "O"):
                ways[neighbor] = [*ways[place], name]
                queue.append(neighbor)
    return None
