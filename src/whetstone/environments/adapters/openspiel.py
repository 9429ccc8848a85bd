"""Games of OpenSpiel in text: two and more players, chance, hidden cards.

The agent has one seat, scripted opponents the others; chance is drawn from the task's seed.

Source: OpenSpiel, arXiv:1908.09453.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Literal

from whetstone.environments.game_tasks import GameTasks
from whetstone.environments.needs import check_needs, package
from whetstone.environments.protocol import Shown
from whetstone.errors import RecipeError, did_you_mean
from whetstone.seeding import derive_random
from whetstone.trajectory import Author, Task

_NEEDS = (package("pyspiel", "openspiel"),)
_SEARCHED = 8
"""Half-moves the search looks ahead."""


class OpenSpiel:
    """One game.

    Args:
        id: Its name in OpenSpiel, such as `tic_tac_toe` or `kuhn_poker`.
        opponent: `random`, or `search` (alpha-beta, for two players without chance).
        success_at: The return from which the game counts as a success.

    Raises:
        RecipeError: There is no such game, or it is not played move by move.
    """

    name = "openspiel"
    needs = _NEEDS

    def __init__(self, *, id: str, opponent: Literal["random", "search"] = "random", success_at: float = 0.0) -> None:
        self.id, self.opponent, self.success_at = id, opponent, success_at
        self._game = loaded(id)
        self._state: Any = None
        self._draw = Random(0)
        self.seat = 0
        self.instruction = "Answer with one of the moves."

    def begin(self, task: Task, seed: int) -> Shown:
        """A new game, in the seat of the task."""
        self._draw = derive_random(int(task.private.get("seed", seed)), "openspiel")
        self.seat = int(task.private.get("seat", 0)) % self._game.num_players()
        self._state = self._game.new_initial_state()
        self._let_others()
        return Shown(self._seen(), author=Author.PARTNER)

    def act(self, command: str) -> Shown:
        """The agent's move, and the others'; a move that is none is told."""
        moves = {self._state.action_to_string(self.seat, a): a for a in self._state.legal_actions()}
        if command.strip() not in moves:
            return Shown(f"no such move. {self._seen()}", 0.0, understood=False)
        self._state.apply_action(moves[command.strip()])
        self._let_others()
        if self._state.is_terminal():
            return Shown(f"over: {self._mine():g}", self._mine(), terminated=True)
        return Shown(self._seen(), 0.0, author=Author.PARTNER)

    def verdict(self) -> Mapping[str, Any]:
        """The agent's return, and whether it is enough."""
        over = self._state.is_terminal()
        low, high = self._game.min_utility(), self._game.max_utility()
        score = (self._mine() - low) / (high - low) if over else 0.0
        return {"success": over and self._mine() >= self.success_at, "score": score, "return": self._mine()}

    def admissible(self) -> list[str]:
        """The legal moves."""
        return [self._state.action_to_string(self.seat, action) for action in self._state.legal_actions()]

    def solve(self) -> str:
        """The move an alpha-beta search finds; only for two players without chance."""
        return str(self._state.action_to_string(self.seat, _searched(self._game, self._state, self.seat)))

    def close(self) -> None:
        """Nothing is held."""

    def _let_others(self) -> None:
        """Chance and the opponents, until the agent is to move or it is over."""
        while not self._state.is_terminal() and self._state.current_player() != self.seat:
            if self._state.is_chance_node():
                outcomes, weights = zip(*self._state.chance_outcomes(), strict=True)
                action = self._draw.choices(outcomes, weights)[0]
            elif self.opponent == "search":
                action = _searched(self._game, self._state, self._state.current_player())
            else:
                action = self._draw.choice(self._state.legal_actions())
            self._state.apply_action(action)

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
        return f"{text.strip()}\nmoves: {' '.join(self.admissible())}"


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
    game = pyspiel.load_game(id)
    if game.get_type().dynamics != game.get_type().dynamics.SEQUENTIAL:
        raise RecipeError(f"openspiel: in {name} players move at once; a turn here is one player's")
    return game


def _searched(game: Any, state: Any, seat: int) -> int:
    from open_spiel.python.algorithms import minimax

    _, action = minimax.alpha_beta_search(
        game, state.clone(), value_function=lambda _: 0.0, maximum_depth=_SEARCHED, maximizing_player_id=seat
    )
    return int(action)
