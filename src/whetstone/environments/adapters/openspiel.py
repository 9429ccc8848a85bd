"""Games of OpenSpiel in text: two and more players, chance, hidden cards.

The agent has one seat, scripted opponents the others; chance is drawn from the task's seed.

Easy to get wrong: what a success is. Only where one's gain is the other's loss does a return above zero mean that
somebody won; elsewhere doing nothing may return it.

Source: OpenSpiel, arXiv:1908.09453.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Literal

from whetstone.environments.adapters.game_search import Search
from whetstone.environments.dependencies import check_needs, package
from whetstone.environments.game_tasks import GameTasks
from whetstone.environments.protocol import GameObservation, Isolation
from whetstone.errors import RecipeError, TaskError, did_you_mean
from whetstone.seeding import derive_random
from whetstone.trajectory import Author, Task

_NEEDS = (package("pyspiel", "openspiel"),)
_TRIED = 40
"""Turns that are tried before a game is believed to be playable."""


class OpenSpiel:
    """One game.

    Args:
        id: Its name in OpenSpiel, such as `tic_tac_toe` or `kuhn_poker`.
        opponent: `random`, or `search` (alpha-beta over some thousand positions; for two players, with nothing left to
            chance and nothing hidden).
        success_at: The return from which the game counts as a success; null: any above zero, a draw is none. Has to be
            said where one's gain is not the other's loss.

    Raises:
        RecipeError: There is no such game, it is not played move by move, a search cannot play it, or every return or
            none would be a success.
    """

    name = "openspiel"
    needs = _NEEDS
    isolation: Isolation = "object"

    def __init__(
        self, *, id: str, opponent: Literal["random", "search"] = "random", success_at: float | None = None
    ) -> None:
        self.id, self.opponent, self.success_at = id, opponent, success_at
        self._game = loaded(id)
        if opponent == "search" and not searchable(self._game):
            raise RecipeError(f"openspiel: {id}: opponent: search is for {_SEARCHABLE}; take opponent: random")
        self._state: Any = None
        self._draw = Random(0)
        self.seat = 0
        self.instruction = "Answer with one of the moves."

    def begin(self, task: Task, seed: int) -> GameObservation:
        """A new game, in the seat of the task."""
        self._draw = derive_random(int(task.private.get("seed", seed)), "openspiel")
        self.seat = int(task.private.get("seat", 0)) % self._game.num_players()
        self._state = self._game.new_initial_state()
        self._let_others()
        return GameObservation(self._seen(), author=Author.OTHER_AGENT)

    def act(self, command: str) -> GameObservation:
        """The agent's move, and the others'; a move that is none is told."""
        action = self._moves().get(_bare(command))
        if action is None:
            return GameObservation(f"no such move. {self._seen()}", 0.0, understood=False)
        self._state.apply_action(action)
        self._let_others()
        if self._state.is_terminal():
            return GameObservation(f"over: {self._mine():g}", self._mine(), terminated=True)
        return GameObservation(self._seen(), 0.0, author=Author.OTHER_AGENT)

    def verdict(self) -> Mapping[str, Any]:
        """The agent's return, and whether it is enough."""
        over = self._state.is_terminal()
        low, high = self._game.min_utility(), self._game.max_utility()
        score = (self._mine() - low) / (high - low) if over else 0.0
        enough = self._mine() > 0 if self.success_at is None else self._mine() >= self.success_at
        return {"success": over and enough, "score": score, "return": self._mine()}

    def check(self) -> None:
        """See that there are episodes that are a success and others, and that moves can be made.

        Raises:
            RecipeError: Not so.
        """
        try:
            self._try()
        except Exception as error:  # whatever a package raises on a game that is not made to be played so
            said = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise RecipeError(f"openspiel: {self.id} cannot be played move by move: {said}") from None
        low, high = self._game.min_utility(), self._game.max_utility()
        if self.success_at is None and not _zero_sum(self._game):
            said = f"one's gain is not the other's loss, so say success_at: a return above {low:g}, up to {high:g}"
            raise RecipeError(f"openspiel: {self.id}: {said}")
        if self.success_at is not None and not low < self.success_at <= high:
            said = "every game" if self.success_at <= low else "none"
            raise RecipeError(
                f"openspiel: {self.id} returns {low:g} to {high:g}, so {said} is a success at {self.success_at:g}"
            )

    def admissible(self) -> list[str]:
        """The legal moves."""
        return list(self._moves())

    def solve(self) -> str:
        """The move a search finds.

        Raises:
            TaskError: It cannot play this game.
        """
        if not searchable(self._game):
            raise TaskError(f"openspiel: {self.id} has no answer of its own to show; a search is for {_SEARCHABLE}")
        return self._said(self._searched())

    def close(self) -> None:
        """Nothing is held."""

    def _let_others(self) -> None:
        """Chance and the opponents, until the agent is to move or it is over."""
        while not self._state.is_terminal() and self._state.current_player() != self.seat:
            if self._state.is_chance_node():
                outcomes, weights = zip(*self._state.chance_outcomes(), strict=True)
                action = self._draw.choices(outcomes, weights)[0]
            elif self.opponent == "search":
                action = self._searched()
            else:
                action = self._draw.choice(self._state.legal_actions())
            self._state.apply_action(action)

    def _searched(self) -> int:
        """A good move of whoever is to move."""
        seat = int(self._state.current_player())
        return Search(seat, self._game.max_utility(), self._game.min_utility()).move(self._state)

    def _moves(self) -> dict[str, int]:
        """The legal moves as they are said, and what each is here."""
        moves: dict[str, int] = {}
        for action in self._state.legal_actions():
            moves.setdefault(self._said(action), action)
        return moves

    def _said(self, action: int) -> str:
        return _bare(self._state.action_to_string(self.seat, action))

    def _try(self) -> None:
        """Play some turns by chance."""
        opponent, self.opponent = self.opponent, "random"
        self.begin(Task("", "", {"seed": 0}), 0)
        for _ in range(_TRIED):
            if self._state.is_terminal():
                break
            self.act(self._draw.choice(self.admissible()))
        self.opponent = opponent

    def _mine(self) -> float:
        return float(self._state.returns()[self.seat]) if self._state.is_terminal() else 0.0

    def _seen(self) -> str:
        kind = self._game.get_type()
        if kind.provides_information_state_string and kind.information == kind.information.IMPERFECT_INFORMATION:
            text = self._state.information_state_string(self.seat)
        elif kind.provides_observation_string:
            text = self._state.observation_string(self.seat)
        else:
            text = str(self._state)
        moves = self.admissible()
        apart = "\n" if any(" " in move for move in moves) else " "
        return f"{text.strip()}\nmoves:{apart}{apart.join(moves)}"


class OpenSpielTasks(GameTasks):
    """Seeds of one game; the agent has each seat equally often.

    Args:
        id: As of the environment.
        seed: As of `Generated`.
        opponent: As of the environment; the expert plays against the same.
    """

    name = "openspiel"
    most = 1
    game = OpenSpiel

    def __init__(self, *, id: str, seed: int = 0, opponent: Literal["random", "search"] = "random") -> None:
        check_needs("openspiel", _NEEDS)
        super().__init__(seed=seed)
        self.id, self._seats = id, loaded(id).num_players()
        self._solver.game = lambda: OpenSpiel(id=id, opponent=opponent)

    def make(self, draw: Random, level: int) -> Task:
        """See `Generated`."""
        private = {"id": self.id, "seed": draw.randrange(2**31), "seat": draw.randrange(self._seats)}
        return Task("", "", private, {"kind": f"{self.id}, seat {private['seat']}"})


def loaded(id: str) -> Any:
    """The game of a name.

    Raises:
        RecipeError: There is none, or its players move at once.
    """
    check_needs("openspiel", _NEEDS)
    import pyspiel

    name = id.partition("(")[0]
    if name not in pyspiel.registered_names():
        raise RecipeError(f"openspiel: no game {name}{did_you_mean(name, pyspiel.registered_names())[:200]}")
    try:
        game = pyspiel.load_game(id)
    except (RuntimeError, IndexError) as error:  # it needs parameters, or a file
        raise RecipeError(f"openspiel: {id}: {str(error).splitlines()[0][:200]}") from None
    if game.get_type().dynamics != game.get_type().dynamics.SEQUENTIAL:
        raise RecipeError(f"openspiel: in {name} players move at once; a turn here is one player's")
    return game


_SEARCHABLE = "two players, one's gain the other's loss, with nothing left to chance and nothing hidden"


def searchable(game: Any) -> bool:
    """Whether an alpha-beta search can play a game."""
    kind = game.get_type()
    determined = kind.chance_mode == kind.chance_mode.DETERMINISTIC
    seen = kind.information == kind.information.PERFECT_INFORMATION
    return game.num_players() == 2 and _zero_sum(game) and determined and seen


def _zero_sum(game: Any) -> bool:
    return bool(game.get_type().utility == game.get_type().utility.ZERO_SUM)


def _bare(text: str) -> str:
    """A move as it is said and compared: one blank between words, none around."""
    return " ".join(text.split())
