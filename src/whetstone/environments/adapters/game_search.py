"""Alpha-beta search with iterative deepening, for deterministic two-player games with perfect information.

Note:
    The search is bounded by the number of positions. A depth is no bound: eight half-moves take an instant in
    tic-tac-toe and hours in Go. A time limit would not be reproducible.

Source: Knuth and Moore, An Analysis of Alpha-Beta Pruning, 1975.
"""

from __future__ import annotations

import math
from typing import Any

POSITIONS = 4_000
"""Maximum number of positions per move, if positions are cheap."""
_MOVES = 160_000
"""Maximum number of generated legal moves per move; the cost of a position grows with them."""


class _Spent(Exception):
    """The budget of positions is used up."""


class Search:
    """A search for one seat's move.

    Args:
        seat: Seat to move.
        best: Return of a won game.
        worst: Return of a lost game.
    """

    def __init__(self, seat: int, best: float, worst: float) -> None:
        self.seat, self.best, self.worst = seat, best, worst
        self.positions, self.moves = 0, 0
        self._cut = False
        """Whether the depth limit cut the search before the end of a game."""

    def move(self, state: Any) -> int:
        """Return the move that wins soonest, or else one that does not lose.

        The first if all are equal.
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
        except _Spent:
            return best_action

    def _value(self, state: Any, depth: int, alpha: float, beta: float) -> tuple[float, int]:
        """Return the value of a position for the seat, and the move that reaches it."""
        self.positions += 1
        if state.is_terminal():
            return float(state.player_return(self.seat)), -1
        if depth == 0:
            self._cut = True
            return (self.best + self.worst) / 2, -1
        actions = state.legal_actions()
        self.moves += len(actions)
        if self.positions > POSITIONS or self.moves > _MOVES:
            raise _Spent
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
