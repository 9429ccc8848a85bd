"""Search for legal moves of games that explain their rules in words: candidates from the text, tried on a copy.

    listed moves → text in brackets in the rules → the same with other numbers and squares
        → each tried on a copy of the game, until one is legal

Note:
    A player that tries only listed moves gives up in most games, which is a win of the other side. Lists can also occur
    in messages of players; only the game's text is read.
"""

from __future__ import annotations

import copy
import functools
import math
import random
import re
from collections.abc import Iterator
from random import Random
from typing import Any

_TRIES, _SAFE = 3000, 6
"""Maximum number of tried moves; and of legal moves that lose immediately, after which the first one is returned."""
_SHAPES, _USES = 40, 20
"""Maximum number of stored move shapes; and of moves that a copy refuses before it is replaced."""
_LISTED = re.compile(r"\[[^\[\]\n]{1,24}\]")
_MOVES = re.compile(r"(?:Available|Valid|Legal|Possible)\b[^:\n]{0,40}:([^\n]{0,4000})", re.IGNORECASE)
_PIECE = re.compile(r"<[^<>]*>|\d+|[A-Za-z]+|[^A-Za-z\d<>]+")
_PAIR = re.compile(r"([A-Za-z])(\d)(\W*)([A-Za-z])(\d)")
_STEPS = [(aside, ahead) for aside in range(-2, 3) for ahead in range(-2, 3) if aside or ahead]
_PLACEHOLDER = re.compile(r"<.*>|[A-Z]|[nijk]|row|col|number|amount|value|index|quantity|pile", re.IGNORECASE)


def listed_moves(text: str) -> list[str]:
    """Return the moves in brackets of the last list, such as after `Available moves:`."""
    lists = _MOVES.findall(text)
    return _LISTED.findall(lists[-1]) if lists else []


class GameText:
    """Messages of a game to one seat, from which candidate moves are derived."""

    def __init__(self) -> None:
        self.forms: dict[str, None] = {}
        """Texts in brackets, without duplicates, in the order of their first occurrence."""
        self.listed: list[str] = []
        """Moves of the most recent list of available moves."""

    def read(self, text: str) -> None:
        """Add a message of the game: collect its texts in brackets and its list of moves."""
        self.forms |= dict.fromkeys(form for form in _LISTED.findall(text) if not re.match(r"\[(?:GAME|Player)", form))
        self.listed = listed_moves(text) or self.listed

    def candidate_moves(self, draw: Random) -> Iterator[str]:
        """Yield distinct moves to try, the most likely first.

        First the listed moves, then forms unchanged and with other numbers, each shape equally often, then every pair
        of squares, then `[pass]`. Order and numbers are random.
        """
        seen = set()
        for move in self._all_candidates(draw):
            if move not in seen:
                seen.add(move)
                yield move

    def _all_candidates(self, draw: Random) -> Iterator[str]:
        yield from draw.sample(self.listed, len(self.listed))
        shapes: dict[str, list[str]] = {}
        for form in self.forms:
            shapes.setdefault(re.sub(r"\d+", "0", re.sub(r"\b[A-Za-z](?=\d)", "a", form)), []).append(form)
        groups = [*shapes.values()][-_SHAPES:]
        for _ in range(2 * _TRIES if groups else 0):
            form = draw.choice(draw.choice(groups))
            yield form if draw.random() < 0.2 else similar_move(form, draw)
        for form, *_ in groups:
            pair = _PAIR.fullmatch(form[1:-1].strip())
            if pair is not None:
                yield from draw.sample(nearby_moves(*pair.group(1, 3, 4)), 64 * len(_STEPS))
        yield "[pass]"


def similar_move(form: str, draw: Random) -> str:
    """Return a move of the same form with other numbers, letters or squares.

    The second of two squares is near the first.

    >>> similar_move("[take 3]", Random(0)), similar_move("[a2a3]", Random(1))
    ('[take 6]', '[b4b3]')
    """
    inside = form[1:-1]
    pair = _PAIR.fullmatch(inside.strip())
    if pair is not None:
        return draw.choice(nearby_moves(*pair.group(1, 3, 4)))
    pieces, letters = _PIECE.findall(inside), draw.random() < 0.5
    parts = []
    for place, piece in enumerate(pieces):
        neighbors = "".join(pieces[max(0, place - 1) : place] + pieces[place + 1 : place + 2])
        if piece.isdigit():
            parts.append(str(draw.randint(0, min(40, max(9, 2 * int(piece[:4]))))))
        elif letters and len(piece) == 1 and piece.isalpha() and any(map(str.isdigit, neighbors)):
            parts.append(_letter(piece, draw.randrange(10)))
        elif _PLACEHOLDER.fullmatch(piece) and not any(map(str.isdigit, inside)):
            parts.append(str(draw.randint(0, 20)))
        else:
            parts.append(piece)
    return f"[{''.join(parts)}]"


@functools.lru_cache(maxsize=64)
def nearby_moves(first: str, between: str, second: str) -> tuple[str, ...]:
    """Return all moves between two near squares of an 8 × 8 board, in the given form.

    Args:
        first: A letter of the first square, uppercase or lowercase.
        between: Text between the squares.
        second: A letter of the second square, uppercase or lowercase.
    """
    return tuple(
        f"[{_letter(first, column)}{row}{between}{_letter(second, (column + aside) % 8)}{max(0, row + ahead)}]"
        for column in range(8)
        for row in range(1, 9)
        for aside, ahead in _STEPS
    )


def _letter(like: str, number: int) -> str:
    return chr(ord("a" if like.islower() else "A") + number)


class MoveTrial:
    """A copy of a game on which moves are tried without an effect on the game.

    The shared random generator keeps its state, too.

    Args:
        env: Game of TextArena.
        seat: Seat whose moves are tried.
    """

    def __init__(self, env: Any, seat: int) -> None:
        self.env, self.seat = env, seat
        self._copy: Any = None
        self._used = 0

    def try_move(self, move: str) -> tuple[bool, bool]:
        """Return whether the game accepts a move, and whether the player loses by it.

        A move on which the game raises an exception is not accepted.
        """
        outside = random.getstate()
        fresh = self._copy is None or self._used >= _USES
        try:
            self._copy = copy.deepcopy(self.env) if fresh else self._copy
            self._used = 1 if fresh else self._used + 1
            state, before = self._copy.state, len(self._copy.state.logs)
            self._copy.step(move)
            taken = is_accepted(state, self.seat, before)
            rewards = state.rewards if isinstance(state.rewards, dict) else {}
            out = is_eliminated(state, self.seat)
            lost = out or bool(state.done and finite_reward(rewards.get(self.seat)) < 0)
            if taken or state.done or out or not hasattr(state, "error_count"):
                self._copy = None
            else:
                state.error_count = 0  # otherwise the second invalid move would end the game
        except Exception:  # a game that raises on a move has not accepted it
            self._copy = None
            return False, False
        finally:
            random.setstate(outside)
        return (taken, lost) if fresh or not taken else self.try_move(move)


def find_move(env: Any, seat: int, game_text: GameText, draw: Random, *, careful: bool = False) -> str | None:
    """Return a legal move of a seat; None if no tried move is legal.

    Candidates are tried in random order on a copy; the game itself is not changed.

    Args:
        env: Game of TextArena.
        seat: Seat that is to move.
        game_text: Messages of the game to the seat.
        careful: Prefer a move that does not lose immediately. This lookahead is fair only in games without hidden
            information.
    """
    trial, legal, count = MoveTrial(env, seat), "", 0
    for tried, move in enumerate(game_text.candidate_moves(draw)):
        taken, lost = trial.try_move(move)
        if taken:
            legal, count = legal or move, count + 1
            if not (careful and lost):
                return move
        if tried >= _TRIES or count >= _SAFE:
            break
    return legal or None


def is_eliminated(state: Any, seat: int) -> bool:
    """Return whether a seat is eliminated while others continue to play.

    Most games of TextArena have no list of eliminated seats.
    """
    return seat in getattr(state, "elimination_order", ())


def is_accepted(state: Any, seat: int, before: int) -> bool:
    """Return whether a game accepted a move: it logged no "invalid move" and did not mark the seat's move as invalid.

    Args:
        state: State of the game after the move.
        seat: Seat that moved.
        before: Length of the log before the move.
    """
    refused = any("invalid move" in str(message).lower() for _, message in state.logs[before:])
    return not refused and not state.game_info.get(seat, {}).get("invalid_move")


def finite_reward(value: Any) -> float:
    """Return a reward as a float if it is a finite number, else 0."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0
