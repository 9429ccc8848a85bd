"""What is a good move in a game of two without chance or anything hidden? Alpha-beta, deeper and deeper, until so many
positions were looked at.

Easy to get wrong: a depth is no bound. Eight half-moves are a moment in tic-tac-toe and hours in Go; and a clock is
none that gives the same game twice. Positions are counted.

Source: Knuth and Moore, An Analysis of Alpha-Beta Pruning, 1975.
"""

from __future__ import annotations

import math
from typing import Any

POSITIONS = 4_000
"""Looked at for a move, of a game whose positions are cheap."""
_MOVES = 160_000
"""Legal moves counted on the way, for a move: what a position costs grows with them."""


class _Spent(Exception):
    """So many positions were looked at."""


class Search:
    """A search for one seat's move.

    Args:
        seat: Whose move it is.
        best: What a won game returns.
        worst: What a lost one does.
    """

    def __init__(self, seat: int, best: float, worst: float) -> None:
        self.seat, self.best, self.worst = seat, best, worst
        self.positions, self.moves = 0, 0
        self._cut = False
        """Whether a position was judged that is not the end of a game."""

    def move(self, state: Any) -> int:
        """The move to make: one that wins soonest, else one that is not lost; the first where all are the same."""
        found = int(state.legal_actions()[0])
        depth = 0
        try:
            while True:
                depth, self._cut = depth + 1, False
                value, action = self._value(state, depth, -math.inf, math.inf)
                if value > self.worst or depth == 1:
                    found = action
                if not self._cut or value <= self.worst or value >= self.best:
                    return found
        except _Spent:
            return found

    def _value(self, state: Any, depth: int, alpha: float, beta: float) -> tuple[float, int]:
        """(what a position is worth to the seat, the move that makes it so)"""
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
        ours = state.current_player() == self.seat
        best, chosen = (-math.inf if ours else math.inf), int(actions[0])
        for action in actions:
            below = state.clone()
            below.apply_action(action)
            value, _ = self._value(below, depth - 1, alpha, beta)
            if (value > best) if ours else (value < best):
                best, chosen = value, int(action)
            alpha, beta = (max(alpha, best), beta) if ours else (alpha, min(beta, best))
            if alpha >= beta:
                break
        return best, chosen
