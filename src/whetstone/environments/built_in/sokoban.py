"""Sokoban in text: push every box onto a goal. A box in a corner cannot be moved again.

Ends: terminated when every box is on a goal; truncated after `max_steps`.

Levels are generated backward, by pulling boxes off their goals, so that each can be solved.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping
from random import Random
from typing import Any

from whetstone.environments.built_in.frozen_lake import MOVES, Place
from whetstone.environments.built_in.game_base import PlainGame
from whetstone.environments.game_tasks import GameTasks
from whetstone.environments.protocol import GameObservation
from whetstone.trajectory import Task

State = tuple[Place, frozenset[Place]]
"""State of the game: (player, boxes)."""


class Sokoban(PlainGame):
    """Sokoban on a map of walls `#` and floor `.`.

    The map shows boxes `$`, goals `o`, a box on its goal `*`, the player `P`, and the player on a goal `Q`.

    Args:
        max_steps: Number of moves after which the game is truncated.
    """

    name = "sokoban"
    instruction = "Push every box $ onto a goal o. Commands: up, down, left, right."
    commands = tuple(MOVES)

    def __init__(self, *, max_steps: int = 40) -> None:
        self.max_steps = max_steps
        self.walls: list[str] = []
        self.goals: frozenset[Place] = frozenset()
        self.placed_at_first = 0
        self.state: State = ((0, 0), frozenset())
        self.steps = 0

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Start with the walls, boxes and goals of the task; return the map."""
        self.walls = list(task.private["walls"])
        self.goals = _places(task.private["goals"])
        row, column = task.private["player"]
        self.state, self.steps = ((row, column), _places(task.private["boxes"])), 0
        self.placed_at_first = len(self.state[1] & self.goals)
        return GameObservation(self._seen())

    def act(self, command: str) -> GameObservation:
        """Execute one move; a move against a wall or a blocked box changes nothing.

        The reward is the change of the score.
        """
        self.steps += 1
        late, command = self.steps >= self.max_steps, command.lower()
        if command not in MOVES:
            return GameObservation(f"no such move: {command}\n{self._seen()}", 0.0, understood=False, truncated=late)
        before = len(self.state[1] & self.goals)
        self.state = apply_move(self.walls, self.state, command) or self.state
        placed = len(self.state[1] & self.goals)
        solved = placed == len(self.goals)
        gain = (placed - before) / max(1, len(self.goals) - self.placed_at_first)
        return GameObservation(self._seen(), gain, terminated=solved, truncated=late and not solved)

    def verdict(self) -> Mapping[str, Any]:
        """Return the number of boxes on goals, the score and the number of moves.

        The score counts only boxes that were not on a goal initially.
        """
        placed, first = len(self.state[1] & self.goals), self.placed_at_first
        share = max(0.0, (placed - first) / max(1, len(self.goals) - first))
        done = placed == len(self.goals)
        return {"success": done, "score": 1.0 if done else share, "placed": placed, "steps": self.steps}

    def admissible(self) -> list[str]:
        """Return the moves that change the position of the player or a box."""
        return [name for name in MOVES if apply_move(self.walls, self.state, name) is not None]

    def solve(self) -> str:
        """Return the first move of a shortest solution; `up` if there is none."""
        way = find_solution(tuple(self.walls), self.goals, self.state)
        return way[0] if way else "up"

    def _seen(self) -> str:
        player, boxes = self.state
        rows = []
        for r, row in enumerate(self.walls):
            marks = []
            for c, mark in enumerate(row):
                place, goal = (r, c), (r, c) in self.goals
                if place == player:
                    mark = "Q" if goal else "P"
                elif place in boxes:
                    mark = "*" if goal else "$"
                elif goal:
                    mark = "o"
                marks.append(mark)
            rows.append("".join(marks))
        return "\n".join(rows)


class SokobanTasks(GameTasks):
    """Level 1: one box, a few pushes; level 2: one box, further; level 3: two boxes.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
    """

    name = "sokoban"
    game = Sokoban

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        side, boxes = (6, 7, 7)[level - 1], (1, 1, 2)[level - 1]
        shortest, longest = ((2, 8), (9, 16), (8, 24))[level - 1]
        while True:
            walls = _room(draw, side)
            floor = [(r, c) for r in range(side) for c in range(side) if walls[r][c] == "."]
            goals = frozenset(draw.sample(floor, boxes))
            start: State = (draw.choice([place for place in floor if place not in goals]), goals)
            state = _pull_boxes(walls, start, draw, 20 * level)
            way = find_solution(tuple(walls), goals, state)
            if way is not None and shortest <= len(way) <= longest:
                break
        player, stand = state
        private = {
            "walls": walls,
            "goals": sorted(map(list, goals)),
            "boxes": sorted(map(list, stand)),
            "player": list(player),
            "expert_turns": len(way),
        }
        return Task("", "", private, {"kind": f"{boxes} box{'es' if boxes > 1 else ''}"})


def apply_move(walls: list[str], state: State, move: str) -> State | None:
    """Return the state after a move; None if nothing moves."""
    (row, column), boxes = state
    down, right = MOVES[move]
    target, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
    if walls[target[0]][target[1]] == "#":
        return None
    if target not in boxes:
        return target, boxes
    if walls[beyond[0]][beyond[1]] == "#" or beyond in boxes:
        return None
    return target, (boxes - {target}) | {beyond}


@functools.lru_cache(maxsize=4096)
def find_solution(walls: tuple[str, ...], goals: frozenset[Place], state: State) -> tuple[str, ...] | None:
    """Return a shortest sequence of moves that puts every box on a goal.

    Return None if the level cannot be solved.

    Args:
        walls: Rows of the map; `#` is a wall.
        goals: Goals, as (row, column).
        state: Player and boxes.
    """
    rows = list(walls)
    came: dict[State, tuple[State, str] | None] = {state: None}
    queue = deque([state])
    while queue:
        reached = queue.popleft()
        if reached[1] == goals:
            way: list[str] = []
            while (step := came[reached]) is not None:
                reached, name = step
                way.append(name)
            return tuple(reversed(way))
        for name in MOVES:
            following = apply_move(rows, reached, name)
            if following is not None and following not in came:
                came[following] = (reached, name)
                queue.append(following)
    return None


def _room(draw: Random, side: int) -> list[str]:
    """Generate a room with walls around it and a few walls inside."""
    inside = range(1, side - 1)
    return [
        "".join("." if r in inside and c in inside and draw.random() > 0.12 else "#" for c in range(side))
        for r in range(side)
    ]


def _pull_boxes(walls: list[str], state: State, draw: Random, steps: int) -> State:
    """Return the state after a random walk of a player who pulls boxes."""
    (row, column), boxes = state
    for _ in range(steps):
        down, right = draw.choice(list(MOVES.values()))
        target, pulled = (row + down, column + right), (row - down, column - right)
        if walls[target[0]][target[1]] == "#" or target in boxes:
            continue
        if pulled in boxes and draw.random() < 0.8:
            boxes = (boxes - {pulled}) | {(row, column)}
        row, column = target
    return (row, column), boxes


def _places(rows: Any) -> frozenset[Place]:
    """Convert rows of [row, column] to a set of squares."""
    return frozenset((row, column) for row, column in rows)
