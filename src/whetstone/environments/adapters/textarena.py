"""Adapter for games of TextArena, single-player or against scripted opponents.

The agent has seat 0. Opponents in the other seats play random legal moves; see `legal_moves.py`.

Note:
    An opponent that cannot move forfeits, so that the agent would win with one legal move, or with none. A game is
        refused if its opponents cannot be played here, or if text that is not a move wins it. The rewards of many games
        are fractions: in a single-player game only the maximum is a success, and a game that ended by an invalid move,
        or did not end, has score 0.

Source: TextArena, arXiv:2504.11442.
"""

from __future__ import annotations

import copy
import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from whetstone.environments.adapters.isolated_rng import IsolatedRandom
from whetstone.environments.adapters.legal_moves import (
    GameText,
    find_move,
    finite_reward,
    is_accepted,
    is_eliminated,
    listed_moves,
)
from whetstone.environments.dependencies import check_requirements, require_package
from whetstone.environments.protocol import GameObservation, Isolation
from whetstone.errors import InfrastructureError, RecipeError, TaskError, did_you_mean
from whetstone.seeding import derive_random, derive_seed
from whetstone.tasks.generated import Generated, check_environment_id
from whetstone.trajectory import Author, Task

_NEEDS = (require_package("textarena", "textarena"),)
_MAX_MOVES_BETWEEN = 100
"""Maximum number of moves of each opponent between two moves of the agent, before the game fails."""
_SUICIDAL = ("Snake", "Surround")
"""Games without hidden information in which half of the legal moves lead into a wall."""
_MAX_TURNS, _TRIED_GAMES, _TRIED_TURNS, _TRIED_SILENT = 40, 24, 120, 32
"""Bounds of the check of a game. Maximum number of the agent's turns; maximum number of games with legal moves, at
least two, and of their turns together, since a state without a found move can be rare; number of games in which the
agent sends nothing, or text that is not a move."""


class TextArena:
    """Game of TextArena in which the agent plays seat 0.

    Args:
        id: Id in TextArena, such as `TicTacToe-v0`.
        players: Number of seats.

    Raises:
        RecipeError: If there is no such game.
    """

    name = "textarena"
    needs = _NEEDS
    isolation: Isolation = "process"  # games share one random generator, and some regular expressions never end

    def __init__(self, *, id: str, players: int = 2) -> None:
        import textarena

        known = textarena.envs.registration.ENV_REGISTRY
        if id not in known:
            raise RecipeError(f"textarena: no game named {id}{did_you_mean(id, known)[:200]}")
        self.id, self.players = id, players
        self._make = textarena.make
        self._env: Any = None
        self._author = Author.OTHER_AGENT if players > 1 else Author.ENVIRONMENT
        self._random = IsolatedRandom(0)
        self._opponent = Random(0)
        self._game_texts: dict[int, GameText] = {}
        self.rewards: dict[int, float] | None = None
        self.turns = 0
        self._text = ""

    def check(self) -> None:
        """Check that opponents can play the game, and that invalid moves do not win it.

        Raises:
            RecipeError: If a check fails; the message has the reason.
        """
        problem = _find_problem(self.id, self.players)
        if problem:
            raise RecipeError(f"textarena: {self.id}: {problem}")

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Start a game; the task's seed determines the moves of the opponents.

        Raises:
            TaskError: If the task belongs to another game, or the game does not start.
        """
        check_environment_id(task, self.id)
        own = int(task.private.get("seed", seed))
        self._random, self._opponent = IsolatedRandom(own), derive_random(own, "opponent")
        self.rewards, self.turns, self._game_texts = None, 0, defaultdict(GameText)
        with self._random.in_place():
            try:
                self._env = self._make(self.id)
                self._env.reset(num_players=self.players, seed=derive_seed(own) % 2**31)
            except Exception as error:
                raise TaskError(f"textarena: {self.id}: {_error_line(error)}") from error
            alone = type(self._env.state).__name__ == "SinglePlayerState"
            if alone is not (self.players == 1):  # with empty seats, some games wait forever
                raise TaskError(
                    f"textarena: {self.id}: the game cannot be played by {self.players} player{'s'[: self.players > 1]}"
                )
            self._text = self._advance_to_agent()
        return GameObservation(self._text, author=self._author)

    def act(self, command: str) -> GameObservation:
        """Execute the agent's move and the opponents' until it is the agent's turn again.

        A move on which the game raises an exception is invalid and changes nothing.

        Raises:
            InfrastructureError: If an opponent found no legal move.
        """
        self.turns += 1
        if self.rewards is not None:
            return GameObservation("The game is over.", self._score(), terminated=True)
        with self._random.in_place():
            backup, before = copy.deepcopy(self._env), len(self._env.state.logs)
            try:
                done, _ = self._env.step(command)
            except Exception as error:  # a move on which a game raises is invalid
                self._env = backup
                return GameObservation(f"The game cannot read that ({type(error).__name__}).", 0.0, understood=False)
            understood = is_accepted(self._env.state, 0, before)
            text = "" if done else self._advance_to_agent()
            if self.rewards is None and not done:
                # the observation is the whole game so far; only the new part is shown
                new, self._text = text.removeprefix(self._text).strip() or text, text
                return GameObservation(new, 0.0, author=self._author, understood=understood)
            self._finish()
        return GameObservation("The game is over.", self._score(), terminated=True, understood=understood)

    def verdict(self) -> Mapping[str, Any]:
        """Return whether the agent won, its reward, and the number of its moves.

        A win requires the highest reward of all seats, or the reward 1 in a single-player game. The score is a positive
        reward. It is 0 for a tie, for an unfinished game, and for a game that ended by an invalid move.
        """
        reward, score = self._own_reward(), self._score()
        best = max((self.rewards or {0: 0.0}).values())
        won = score > 0 and reward >= best if self.players > 1 else score >= 1
        return {"success": won, "score": score, "reward": reward, "moves": self.turns}

    def admissible(self) -> list[str]:
        """Return the moves that the game's latest text lists; empty if it lists none."""
        return listed_moves(self._text)

    def close(self) -> None:
        """Do nothing; the game has no resources."""

    def any_move(self) -> str:
        """Return a legal move of the agent's seat, found in the same way as for opponents.

        Raises:
            InfrastructureError: If no legal move was found.
        """
        with self._random.in_place():
            return self._move_of(0)

    def _move_of(self, seat: int) -> str:
        """Return a legal move of a seat.

        Raises:
            InfrastructureError: If no legal move was found.
        """
        careful = self.id.startswith(_SUICIDAL)
        move = find_move(self._env, seat, self._game_texts[seat], self._opponent, careful=careful)
        if move is None:
            problem = f"no legal move was found for seat {seat} after {self.turns} turns of the agent"
            raise InfrastructureError(f"textarena: {self.id}: {problem}")
        return move

    def _advance_to_agent(self) -> str:
        """Execute the opponents' moves until it is the agent's turn.

        Returns:
            The agent's observation; empty if the game ended.

        Raises:
            InfrastructureError: If an opponent found no move, or it is never the agent's turn again.
        """
        for _ in range(_MAX_MOVES_BETWEEN * self.players):
            self._read_messages()
            seat, text = self._env.get_observation()
            if seat == 0:
                return str(text)
            if self._play_opponent(seat):
                return ""
        if is_eliminated(self._env.state, 0):
            self.rewards = {0: -1.0}
            return ""
        raise InfrastructureError(
            f"textarena: {self.id}: it is not the agent's turn after {_MAX_MOVES_BETWEEN} moves of each opponent"
        )

    def _read_messages(self) -> None:
        """Read the messages of the game itself to the seats.

        Messages of players are ignored: they can contain lists of moves, too.
        """
        for seat, messages in self._env.state.observations.items():
            for author, text, *_ in messages:
                if author == -1:
                    self._game_texts[seat].read(str(text))

    def _play_opponent(self, seat: int) -> bool:
        """Execute a move of an opponent; return whether the game is over.

        Raises:
            InfrastructureError: If no legal move was found, or the game refuses the move that its copy accepted.
        """
        move = self._move_of(seat)
        before = len(self._env.state.logs)
        done, _ = self._env.step(move)
        if not is_accepted(self._env.state, seat, before):
            raise InfrastructureError(
                f"textarena: {self.id}: a move of seat {seat} was legal on a copy of the game only"
            )
        if done:
            self._finish()
        return bool(done)

    def _finish(self) -> None:
        """Close the finished game and store the rewards of all seats."""
        if self.rewards is None:
            rewards, _ = self._env.close()
            by_seat = rewards if isinstance(rewards, Mapping) else {}
            self.rewards = {int(seat): finite_reward(reward) for seat, reward in by_seat.items()}

    def _own_reward(self) -> float:
        """Return the agent's reward; 0 before the end of the game."""
        return (self.rewards or {}).get(0, 0.0)

    def _score(self) -> float:
        """Return the agent's reward clipped to 0 to 1; 0 after an invalid move."""
        fouled = self._env is not None and self._env.state.game_info.get(0, {}).get("invalid_move")
        return 0.0 if fouled or self.rewards is None else max(0.0, min(1.0, self._own_reward()))


class TextArenaTasks(Generated):
    """Task source: seeds of one TextArena game, one in ten of them held out.

    Args:
        id: Id in TextArena, such as `TicTacToe-v0`; the same as that of the environment.
        seed: Determines the training tasks; the held-out tasks do not depend on it.
    """

    name = "textarena"
    most = 1

    def __init__(self, *, id: str, seed: int = 0) -> None:
        check_requirements("textarena", _NEEDS)
        super().__init__(seed=seed)
        self.id = id

    def make(self, draw: Random, level: int) -> Task:
        """Generate a task with a random seed; see `Generated`."""
        return Task("", "", {"id": self.id, "seed": draw.randrange(2**31)}, {"kind": self.id})


@functools.lru_cache(maxsize=256)
def _find_problem(id: str, players: int) -> str:
    """Return the reason why a game cannot be played here; empty if it can."""
    try:
        games, turns = 0, 0
        while players > 1 and (games < 2 or (games < _TRIED_GAMES and turns < _TRIED_TURNS)):
            turns += _play_trial(id, players, games, TextArena.any_move).turns
            games += 1
        for seed in range(_TRIED_SILENT):
            word = ("", "zzqx")[seed % 2]
            game = _play_trial(id, players, seed, functools.partial(_constant_move, word))
            if game.verdict()["success"]:
                return f"the game is won by {'text that is not a move' if word else 'an empty message'}"
    except TaskError as error:
        return str(error).removeprefix(f"textarena: {id}: ")
    except InfrastructureError as error:
        return f"{str(error).removeprefix(f'textarena: {id}: ')}; the game cannot be played here"
    return ""


def _play_trial(id: str, players: int, seed: int, say: Callable[[TextArena], str]) -> TextArena:
    """Play up to `_MAX_TURNS` turns of a game with a scripted agent; return the game.

    The script returns the agent's message in a state of the game.
    """
    game = TextArena(id=id, players=players)
    game.begin(Task("", "", {"seed": seed}), seed)
    for _ in range(_MAX_TURNS):
        if game.act(say(game)).terminated:
            break
    return game


def _constant_move(word: str, game: TextArena) -> str:
    """Return the same message in every state; a scripted agent of `_play_trial`."""
    return word


def _error_line(error: Exception) -> str:
    """Return the type and at most 160 characters of an exception in one line."""
    text = " ".join(str(error).replace("*", " ").split())[:160]
    return f"{type(error).__name__}: {text}"
