"""Games of TextArena against scripted opponents, or alone.

The agent has seat 0. In the other seats sits somebody who plays at random among the moves the game lists.

Source: TextArena, arXiv:2504.11442.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Any

from whetstone.environments.adapters.own_random import OwnRandom
from whetstone.environments.needs import check_needs, package
from whetstone.environments.protocol import Shown
from whetstone.errors import RecipeError, TaskError, did_you_mean
from whetstone.seeding import derive_random, derive_seed
from whetstone.tasks.generated import Generated
from whetstone.trajectory import Author, Task

_NEEDS = (package("textarena", "textarena"),)
_LISTED = re.compile(r"\[[^\[\]\n]{1,12}\]")
_MOVES = re.compile(r"(?:Available|Valid|Legal)[^:\n]*:(.*)", re.IGNORECASE)


class TextArena:
    """One game.

    Args:
        id: Its id in TextArena, such as `TicTacToe-v0`.
        players: Seats.

    Raises:
        RecipeError: There is no such game.
    """

    name = "textarena"
    needs = _NEEDS

    def __init__(self, *, id: str, players: int = 2) -> None:
        import textarena

        known = textarena.envs.registration.ENV_REGISTRY
        if id not in known:
            raise RecipeError(f"textarena: no game {id}{did_you_mean(id, known)[:200]}")
        self.id, self.players = id, players
        self._make = textarena.make
        self._env: Any = None
        self._author = Author.PARTNER if players > 1 else Author.ENVIRONMENT
        self._random = OwnRandom(0)
        self._opponent = Random(0)
        self.rewards: dict[int, float] | None = None
        self.turns = 0
        self._text = ""

    def begin(self, task: Task, seed: int) -> Shown:
        """A new game; what the others do comes from the task."""
        if task.private.get("id", self.id) != self.id:
            raise TaskError(f"task {task.id} is of {task.private['id']}, not of {self.id}")
        own = int(task.private.get("seed", seed))
        self._random, self._opponent = OwnRandom(own), derive_random(own, "opponent")
        self.rewards, self.turns = None, 0
        with self._random.in_place():
            self._env = self._make(self.id)
            self._env.reset(num_players=self.players, seed=derive_seed(own) % 2**31)
            self._text = self._to_the_agent()
        return Shown(self._text, author=self._author)

    def act(self, command: str) -> Shown:
        """The agent's move, and those of the others."""
        self.turns += 1
        with self._random.in_place():
            done, _ = self._env.step(command)
            text = "" if done else self._to_the_agent()
            if self.rewards is None and not done:
                # the whole game is told each time; what was told before stands in the conversation already
                new, self._text = text.removeprefix(self._text).strip() or text, text
                return Shown(new, 0.0, author=self._author)
            self._over()
        return Shown("The game is over.", self._mine(), terminated=True)

    def verdict(self) -> Mapping[str, Any]:
        """Whether the agent won; its reward in TextArena is from −1 to 1."""
        won = self._mine() > 0
        return {"success": won, "score": (self._mine() + 1) / 2, "reward": self._mine(), "moves": self.turns}

    def admissible(self) -> list[str]:
        """The moves the game listed last."""
        return listed_moves(self._text)

    def close(self) -> None:
        """Nothing is held."""

    def _to_the_agent(self) -> str:
        """Let the others move until the agent is to; what it reads then."""
        while True:
            seat, text = self._env.get_observation()
            if seat == 0:
                return str(text)
            moves = listed_moves(str(text))
            done, _ = self._env.step(self._opponent.choice(moves) if moves else "[pass]")
            if done:
                self._over()
                return ""

    def _over(self) -> None:
        if self.rewards is None:
            rewards, _ = self._env.close()
            self.rewards = {int(seat): float(reward) for seat, reward in (rewards or {}).items()}

    def _mine(self) -> float:
        return (self.rewards or {}).get(0, 0.0)


class TextArenaTasks(Generated):
    """Seeds of one game, one in ten of them held out.

    Args:
        id: As of the environment.
        seed: As of `Generated`.
    """

    name = "textarena"
    most = 1

    def __init__(self, *, id: str, seed: int = 0) -> None:
        check_needs("textarena", _NEEDS)
        super().__init__(seed=seed)
        self.id = id

    def make(self, draw: Random, level: int) -> Task:
        """See `Generated`."""
        return Task("", "", {"id": self.id, "seed": draw.randrange(2**31)}, {"kind": self.id})


def listed_moves(text: str) -> list[str]:
    """The moves in brackets behind the last `Available moves:` of a text."""
    lists = _MOVES.findall(text)
    return _LISTED.findall(lists[-1]) if lists else []
