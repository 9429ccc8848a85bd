"""Games of TextArena against scripted opponents, or alone.

The agent has seat 0. In the other seats sits somebody who plays legal moves at random; see `legal_moves.py`.

Easy to get wrong: an opponent that cannot move forfeits, and who sits across is scored a winner for one legal move, or
none. A game whose other seats cannot be played here, or that is won by words which are no move, is refused. And rewards
of many games are shares: of a game alone only the whole is a success, and one that ended by a move that was none, or
not at all, is worth nothing.

Source: TextArena, arXiv:2504.11442.
"""

from __future__ import annotations

import copy
import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from whetstone.environments.adapters.legal_moves import Told, eliminated, found_move, listed_moves, number, taken_by
from whetstone.environments.adapters.own_random import OwnRandom
from whetstone.environments.dependencies import check_needs, package
from whetstone.environments.protocol import GameObservation, Isolation
from whetstone.errors import InfrastructureError, RecipeError, TaskError, did_you_mean
from whetstone.seeding import derive_random, derive_seed
from whetstone.tasks.generated import Generated
from whetstone.trajectory import Author, Task

_NEEDS = (package("textarena", "textarena"),)
_MOST_BETWEEN = 100
"""Moves each of the others makes between two of the agent's, before the game is given up."""
_SUICIDAL = ("Snake", "Surround")
"""Games of nothing hidden, in which half of the legal moves lead into a wall."""
_MOST_TURNS, _TRIED_GAMES, _TRIED_TURNS, _TRIED_SILENT = 40, 24, 120, 32
"""Turns of the agent's when a game is tried. How many games are tried with legal moves, two at least, and with how many
turns together: a state in which no move is found can be rare. Games in which the agent says nothing, or no move."""


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
    isolation: Isolation = "process"  # its games share one generator of chance, and some patterns have no end

    def __init__(self, *, id: str, players: int = 2) -> None:
        import textarena

        known = textarena.envs.registration.ENV_REGISTRY
        if id not in known:
            raise RecipeError(f"textarena: no game {id}{did_you_mean(id, known)[:200]}")
        self.id, self.players = id, players
        self._make = textarena.make
        self._env: Any = None
        self._author = Author.OTHER_AGENT if players > 1 else Author.ENVIRONMENT
        self._random = OwnRandom(0)
        self._opponent = Random(0)
        self._told: dict[int, Told] = {}
        self.rewards: dict[int, float] | None = None
        self.turns = 0
        self._text = ""

    def check(self) -> None:
        """See that the game can be begun, that its other seats can be played, and that it is not won by saying nothing.

        Raises:
            RecipeError: One of it is not so; the message says which.
        """
        said = _wrong_with(self.id, self.players)
        if said:
            raise RecipeError(f"textarena: {self.id}: {said}")

    def begin(self, task: Task, seed: int) -> GameObservation:
        """A new game; what the others do comes from the task.

        Raises:
            TaskError: The task is of another game, or this one cannot be begun.
        """
        if task.private.get("id", self.id) != self.id:
            raise TaskError(f"task {task.id} is of {task.private['id']}, not of {self.id}")
        own = int(task.private.get("seed", seed))
        self._random, self._opponent = OwnRandom(own), derive_random(own, "opponent")
        self.rewards, self.turns, self._told = None, 0, defaultdict(Told)
        with self._random.in_place():
            try:
                self._env = self._make(self.id)
                self._env.reset(num_players=self.players, seed=derive_seed(own) % 2**31)
            except Exception as error:
                raise TaskError(f"textarena: {self.id}: {_first_words(error)}") from error
            alone = type(self._env.state).__name__ == "SinglePlayerState"
            if alone is not (self.players == 1):  # with seats nobody has, some games wait for ever
                raise TaskError(
                    f"textarena: {self.id}: it is no game for {self.players} player{'s'[: self.players > 1]}"
                )
            self._text = self._to_the_agent()
        return GameObservation(self._text, author=self._author)

    def act(self, command: str) -> GameObservation:
        """The agent's move, and those of the others."""
        self.turns += 1
        if self.rewards is not None:
            return GameObservation("The game is over.", self._worth(), terminated=True)
        with self._random.in_place():
            kept, before = copy.deepcopy(self._env), len(self._env.state.logs)
            try:
                done, _ = self._env.step(command)
            except Exception as error:  # whatever a game raises on a move, the move is none
                self._env = kept
                return GameObservation(f"The game cannot read that ({type(error).__name__}).", 0.0, understood=False)
            understood = taken_by(self._env.state, 0, before)
            text = "" if done else self._to_the_agent()
            if self.rewards is None and not done:
                # the whole game is told each time; what was told before stands in the conversation already
                new, self._text = text.removeprefix(self._text).strip() or text, text
                return GameObservation(new, 0.0, author=self._author, understood=understood)
            self._over()
        return GameObservation("The game is over.", self._worth(), terminated=True, understood=understood)

    def verdict(self) -> Mapping[str, Any]:
        """Whether the agent won: no seat has more, or alone there is no more to have. The score is its reward where
        that is above 0; a draw is worth nothing, nor is a game that is not over, or ended by a move that was none."""
        mine, worth = self._mine(), self._worth()
        best = max((self.rewards or {0: 0.0}).values())
        won = worth > 0 and mine >= best if self.players > 1 else worth >= 1
        return {"success": won, "score": worth, "reward": mine, "moves": self.turns}

    def admissible(self) -> list[str]:
        """The moves the game listed last."""
        return listed_moves(self._text)

    def close(self) -> None:
        """Nothing is held."""

    def any_move(self) -> str:
        """A legal move of the agent's own seat, found as the others find theirs.

        Raises:
            InfrastructureError: None was found.
        """
        with self._random.in_place():
            return self._move_of(0)

    def _move_of(self, seat: int) -> str:
        careful = self.id.startswith(_SUICIDAL)
        move = found_move(self._env, seat, self._told[seat], self._opponent, careful=careful)
        if move is None:
            said = f"no legal move was found for seat {seat} behind {self.turns} of the agent's"
            raise InfrastructureError(f"textarena: {self.id}: {said}")
        return move

    def _to_the_agent(self) -> str:
        """Let the others move until the agent is to; what it reads then.

        Raises:
            InfrastructureError: One of them found no move, or the agent is not asked any more.
        """
        for _ in range(_MOST_BETWEEN * self.players):
            self._hear()
            seat, text = self._env.get_observation()
            if seat == 0:
                return str(text)
            if self._other_moves(seat):
                return ""
        if eliminated(self._env.state, 0):
            self.rewards = {0: -1.0}
            return ""
        raise InfrastructureError(f"textarena: {self.id}: the others go on among themselves")

    def _hear(self) -> None:
        """What the game itself tells the seats; what players say is not its word."""
        for seat, messages in self._env.state.observations.items():
            for author, said, *_ in messages:
                if author == -1:
                    self._told[seat].hear(str(said))

    def _other_moves(self, seat: int) -> bool:
        """A move of another seat; whether the game is over with it."""
        move = self._move_of(seat)
        before = len(self._env.state.logs)
        done, _ = self._env.step(move)
        if not taken_by(self._env.state, seat, before):
            raise InfrastructureError(f"textarena: {self.id}: a move of seat {seat} was legal on a copy alone")
        if done:
            self._over()
        return bool(done)

    def _over(self) -> None:
        if self.rewards is None:
            rewards, _ = self._env.close()
            given = rewards if isinstance(rewards, Mapping) else {}
            self.rewards = {int(seat): number(reward) for seat, reward in given.items()}

    def _mine(self) -> float:
        return (self.rewards or {}).get(0, 0.0)

    def _worth(self) -> float:
        """What of the reward was earned, from 0 to 1."""
        fouled = self._env is not None and self._env.state.game_info.get(0, {}).get("invalid_move")
        return 0.0 if fouled or self.rewards is None else max(0.0, min(1.0, self._mine()))


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


@functools.lru_cache(maxsize=256)
def _wrong_with(id: str, players: int) -> str:
    """Why a game cannot be played here; empty where it can."""
    try:
        games, turns = 0, 0
        while players > 1 and (games < 2 or (games < _TRIED_GAMES and turns < _TRIED_TURNS)):
            turns += _played(id, players, games, TextArena.any_move).turns
            games += 1
        for seed in range(_TRIED_SILENT):
            word = ("", "zzqx")[seed % 2]
            game = _played(id, players, seed, functools.partial(_says, word))
            if game.verdict()["success"]:
                return f"it is won by {'words that are no move' if word else 'saying nothing'}"
    except TaskError as error:
        return str(error).removeprefix(f"textarena: {id}: ")
    except InfrastructureError as error:
        return f"{str(error).removeprefix(f'textarena: {id}: ')}; it cannot be played here"
    return ""


def _played(id: str, players: int, seed: int, say: Callable[[TextArena], str]) -> TextArena:
    """A game of some turns of an agent who says this."""
    game = TextArena(id=id, players=players)
    game.begin(Task("", "", {"seed": seed}), seed)
    for _ in range(_MOST_TURNS):
        if game.act(say(game)).terminated:
            break
    return game


def _says(word: str, game: TextArena) -> str:
    return word


def _first_words(error: Exception) -> str:
    """An error in one line."""
    said = " ".join(str(error).replace("*", " ").split())[:160]
    return f"{type(error).__name__}: {said}"
