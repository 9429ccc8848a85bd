"""Adapter for games of OpenSpiel in text: two and more players, random events, hidden cards.

The agent has one seat, scripted opponents the others; the task's seed determines random events.

Note:
    The definition of a success depends on the game. Only in zero-sum games does a return above zero mean a win; in
    others, doing nothing may have a positive return.

Source: OpenSpiel, arXiv:1908.09453.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any, Literal

from whetstone.environments.dependencies import check_requirements, require_package
from whetstone.environments.game_tasks import GameTasks
from whetstone.environments.protocol import GameObservation, Isolation
from whetstone.errors import RecipeError, TaskError, did_you_mean
from whetstone.seeding import derive_random
from whetstone.trajectory import Author, Task

_NEEDS = (require_package("pyspiel", "openspiel"),)
_TRIED = 40
"""Maximum number of random turns in the check whether a game is playable."""
MAX_SEARCH_POSITIONS = 4_000
"""Maximum number of positions that the alpha-beta search visits per move."""
_MAX_SEARCH_MOVES = 160_000
"""Maximum number of legal moves that the search generates per move; the cost of a position grows with them."""


class OpenSpiel:
    """Game of OpenSpiel in which the agent plays the seat of the task.

    Args:
        id: Name in OpenSpiel, such as `tic_tac_toe` or `kuhn_poker`.
        opponent: `random`, or `search` (alpha-beta over some thousand positions; for two players, without random events
            and hidden information).
        success_at: Minimum return of a success; null: any above zero. Required if the game is not zero-sum.

    Raises:
        RecipeError: If there is no such game, it is not sequential, the search does not support it, or every return or
            none would be a success.
    """

    name = "openspiel"
    needs = _NEEDS
    isolation: Isolation = "object"

    def __init__(
        self, *, id: str, opponent: Literal["random", "search"] = "random", success_at: float | None = None
    ) -> None:
        self.id, self.opponent, self.success_at = id, opponent, success_at
        self._game = load_game(id)
        if opponent == "search" and not supports_search(self._game):
            raise RecipeError(f"openspiel: {id}: opponent: search supports only {_SEARCHABLE}; set opponent: random")
        self._state: Any = None
        self._draw = Random(0)
        self.seat = 0
        self.instruction = "Answer with one of the moves."

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Start a game in the seat of the task and play until it is the agent's turn."""
        self._draw = derive_random(int(task.private.get("seed", seed)), "openspiel")
        self.seat = int(task.private.get("seat", 0)) % self._game.num_players()
        self._state = self._game.new_initial_state()
        self._play_others()
        return GameObservation(self._observation_text(), author=Author.OTHER_AGENT)

    def act(self, command: str) -> GameObservation:
        """Execute the agent's move, then random events and the opponents' moves.

        An invalid move returns an error and changes nothing.
        """
        action = self._moves().get(_normalize_spaces(command))
        if action is None:
            return GameObservation(f"no such move. {self._observation_text()}", 0.0, understood=False)
        self._state.apply_action(action)
        self._play_others()
        if self._state.is_terminal():
            return GameObservation(f"over: {self._own_return():g}", self._own_return(), terminated=True)
        return GameObservation(self._observation_text(), 0.0, author=Author.OTHER_AGENT)

    def verdict(self) -> Mapping[str, Any]:
        """Return the agent's return, the success, and the score.

        The score is the return scaled from 0 (the minimum of the game) to 1 (the maximum); 0 before the end.
        """
        over = self._state.is_terminal()
        low, high = self._game.min_utility(), self._game.max_utility()
        score = (self._own_return() - low) / (high - low) if over else 0.0
        enough = self._own_return() > 0 if self.success_at is None else self._own_return() >= self.success_at
        return {"success": over and enough, "score": score, "return": self._own_return()}

    def check(self) -> None:
        """Check that moves can be made, and that an episode can be a success or a failure.

        Raises:
            RecipeError: If the game raises in random play, or `success_at` makes every or no return a success.
        """
        try:
            self._try_random_turns()
        except Exception as error:  # any exception of a game that is not playable in text
            problem = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise RecipeError(f"openspiel: {self.id} cannot be played move by move: {problem}") from None
        low, high = self._game.min_utility(), self._game.max_utility()
        if self.success_at is None and not _zero_sum(self._game):
            problem = f"this is not a zero-sum game; set success_at to a return above {low:g} and up to {high:g}"
            raise RecipeError(f"openspiel: {self.id}: {problem}")
        if self.success_at is not None and not low < self.success_at <= high:
            problem = "every game" if self.success_at <= low else "no game"
            raise RecipeError(
                f"openspiel: {self.id}: success_at: returns are {low:g} to {high:g}, so {problem} is a success at "
                f"{self.success_at:g}; set a return above {low:g} and up to {high:g}"
            )

    def admissible(self) -> list[str]:
        """Return the legal moves as texts, which `act` accepts."""
        return list(self._moves())

    def solve(self) -> str:
        """Return the move that the alpha-beta search finds.

        Raises:
            TaskError: If the search does not support the game.
        """
        if not supports_search(self._game):
            raise TaskError(f"openspiel: {self.id} has no expert; the search supports only {_SEARCHABLE}")
        return self._move_text(self._search_move())

    def close(self) -> None:
        """Do nothing; the game has no resources."""

    def _play_others(self) -> None:
        """Play random events and opponents until the agent's turn or the end of the game."""
        while not self._state.is_terminal() and self._state.current_player() != self.seat:
            if self._state.is_chance_node():
                outcomes, weights = zip(*self._state.chance_outcomes(), strict=True)
                action = self._draw.choices(outcomes, weights)[0]
            elif self.opponent == "search":
                action = self._search_move()
            else:
                action = self._draw.choice(self._state.legal_actions())
            self._state.apply_action(action)

    def _search_move(self) -> int:
        """Return the move that the alpha-beta search finds for the current player."""
        seat = int(self._state.current_player())
        return AlphaBetaSearch(seat, self._game.max_utility(), self._game.min_utility()).find_best_move(self._state)

    def _moves(self) -> dict[str, int]:
        """Return the legal actions by the text of the move."""
        moves: dict[str, int] = {}
        for action in self._state.legal_actions():
            moves.setdefault(self._move_text(action), action)
        return moves

    def _move_text(self, action: int) -> str:
        """Return the text of an OpenSpiel action for the agent's seat."""
        return _normalize_spaces(self._state.action_to_string(self.seat, action))

    def _try_random_turns(self) -> None:
        """Play up to `_TRIED` random turns; raises if the game cannot be played."""
        opponent, self.opponent = self.opponent, "random"
        self.begin(Task("", "", {"seed": 0}), 0)
        for _ in range(_TRIED):
            if self._state.is_terminal():
                break
            self.act(self._draw.choice(self.admissible()))
        self.opponent = opponent

    def _own_return(self) -> float:
        """Return the agent's return; 0 before the end of the game."""
        return float(self._state.returns()[self.seat]) if self._state.is_terminal() else 0.0

    def _observation_text(self) -> str:
        """Return the agent's view of the state and its legal moves."""
        kind = self._game.get_type()
        if kind.provides_information_state_string and kind.information == kind.information.IMPERFECT_INFORMATION:
            text = self._state.information_state_string(self.seat)
        elif kind.provides_observation_string:
            text = self._state.observation_string(self.seat)
        else:
            text = str(self._state)
        moves = self.admissible()
        separator = "\n" if any(" " in move for move in moves) else " "
        return f"{text.strip()}\nmoves:{separator}{separator.join(moves)}"


class OpenSpielTasks(GameTasks):
    """Task source: seeds of one OpenSpiel game; the agent has each seat equally often.

    Args:
        id: Name in OpenSpiel, such as `tic_tac_toe`; the same as that of the environment.
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        opponent: Opponent of the expert, `random` or `search`; the same as that of the environment.
    """

    name = "openspiel"
    most = 1
    game = OpenSpiel

    def __init__(self, *, id: str, seed: int = 0, opponent: Literal["random", "search"] = "random") -> None:
        check_requirements("openspiel", _NEEDS)
        super().__init__(seed=seed)
        self.id, self._seats = id, load_game(id).num_players()
        self._solver.game = lambda: OpenSpiel(id=id, opponent=opponent)

    def make(self, draw: Random, level: int) -> Task:
        """Generate a task with a random seed and seat; see `Generated`."""
        private = {"id": self.id, "seed": draw.randrange(2**31), "seat": draw.randrange(self._seats)}
        return Task("", "", private, {"kind": f"{self.id}, seat {private['seat']}"})


def load_game(id: str) -> Any:
    """Load an OpenSpiel game by its id.

    Raises:
        RecipeError: If there is no such game, it cannot be loaded, or its players move simultaneously.
    """
    check_requirements("openspiel", _NEEDS)
    import pyspiel

    name = id.partition("(")[0]
    if name not in pyspiel.registered_names():
        raise RecipeError(f"openspiel: no game named {name}{did_you_mean(name, pyspiel.registered_names())[:200]}")
    try:
        game = pyspiel.load_game(id)
    except (RuntimeError, IndexError) as error:  # it needs parameters, or a file
        raise RecipeError(f"openspiel: {id}: {str(error).splitlines()[0][:200]}") from None
    if game.get_type().dynamics != game.get_type().dynamics.SEQUENTIAL:
        raise RecipeError(f"openspiel: {name}: players move simultaneously; only sequential games are supported")
    return game


_SEARCHABLE = "zero-sum games of two players without random events and hidden information"
"""Description of the games that the alpha-beta search supports, for messages."""


def supports_search(game: Any) -> bool:
    """Return whether the alpha-beta search supports a game of OpenSpiel."""
    kind = game.get_type()
    determined = kind.chance_mode == kind.chance_mode.DETERMINISTIC
    seen = kind.information == kind.information.PERFECT_INFORMATION
    return game.num_players() == 2 and _zero_sum(game) and determined and seen


def _zero_sum(game: Any) -> bool:
    """Return whether a game of OpenSpiel is zero-sum."""
    return bool(game.get_type().utility == game.get_type().utility.ZERO_SUM)


def _normalize_spaces(text: str) -> str:
    """Return a text with one blank between words and no outer blanks."""
    return " ".join(text.split())


class _SearchBudgetSpent(Exception):
    """The alpha-beta search has used up its budget of positions for one move."""


class AlphaBetaSearch:
    """Alpha-beta search with iterative deepening for the move of one seat.

    For deterministic two-player zero-sum games with perfect information; `OpenSpiel` creates one search per move. The
    search ends after `MAX_SEARCH_POSITIONS` positions, so that it takes about the same time in every game and is
    reproducible: a depth of eight half-moves takes an instant in tic-tac-toe and hours in Go.

    Args:
        seat: Seat to move.
        best: Return of a won game.
        worst: Return of a lost game.

    Source: Knuth and Moore, An Analysis of Alpha-Beta Pruning, 1975.
    """

    def __init__(self, seat: int, best: float, worst: float) -> None:
        self.seat, self.best, self.worst = seat, best, worst
        self.positions, self.moves = 0, 0
        self._cut = False
        """Whether the depth limit cut the search before the end of a game."""

    def find_best_move(self, state: Any) -> int:
        """Return the move that wins soonest, or else a move that does not lose.

        Deepens the search by one half-move at a time until the result is decided or the budget of positions is used up.
        If several moves have the same value, the first legal move among them is returned.

        Args:
            state: OpenSpiel state in which the seat is to move; unchanged.

        Returns:
            Action of OpenSpiel.
        """
        best_action = int(state.legal_actions()[0])
        depth = 0
        try:
            while True:
                depth, self._cut = depth + 1, False
                value, action = self._value(state, depth, -math.inf, math.inf)
                if value > self.worst or depth == 1:
                    best_action = action
                if not self._cut or value <= self.worst or value >= self.best:
                    return best_action
        except _SearchBudgetSpent:
            return best_action

    def _value(self, state: Any, depth: int, alpha: float, beta: float) -> tuple[float, int]:
        """Return the minimax value of a position for the seat, and the best move of the player to move.

        A position at depth 0 has the value halfway between a win and a loss; a finished game has the move -1.

        Raises:
            _SearchBudgetSpent: If the budget of positions or generated moves is used up.
        """
        self.positions += 1
        if state.is_terminal():
            return float(state.player_return(self.seat)), -1
        if depth == 0:
            self._cut = True
            return (self.best + self.worst) / 2, -1
        actions = state.legal_actions()
        self.moves += len(actions)
        if self.positions > MAX_SEARCH_POSITIONS or self.moves > _MAX_SEARCH_MOVES:
            raise _SearchBudgetSpent
        is_own_turn = state.current_player() == self.seat
        best, chosen = (-math.inf if is_own_turn else math.inf), int(actions[0])
        for action in actions:
            below = state.clone()
            below.apply_action(action)
            value, _ = self._value(below, depth - 1, alpha, beta)
            if (value > best) if is_own_turn else (value < best):
                best, chosen = value, int(action)
            alpha, beta = (max(alpha, best), beta) if is_own_turn else (alpha, min(beta, best))
            if alpha >= beta:
                break
        return best, chosen
