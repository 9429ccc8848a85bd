"""What can be moved in a game that tells its rules in words? What it takes: read off its own text, tried on a copy.

    moves it lists → what stands in brackets in its rules → the same with other numbers and squares
        → each tried on a copy of the game, until one is taken

Easy to get wrong: who asks only what the game lists gives up in most games, and giving up is the other side's win. And
a list may stand in what a player said; only the game's own words are read.
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
"""Moves that are tried before nothing is found; legal ones among which one that does not lose at once is looked for."""
_SHAPES, _USES = 40, 20
"""Shapes of moves that are held; moves a copy refuses before another one is made."""
_LISTED = re.compile(r"\[[^\[\]\n]{1,24}\]")
_MOVES = re.compile(r"(?:Available|Valid|Legal|Possible)\b[^:\n]{0,40}:([^\n]{0,4000})", re.IGNORECASE)
_PIECE = re.compile(r"<[^<>]*>|\d+|[A-Za-z]+|[^A-Za-z\d<>]+")
_PAIR = re.compile(r"([A-Za-z])(\d)(\W*)([A-Za-z])(\d)")
_STEPS = [(aside, ahead) for aside in range(-2, 3) for ahead in range(-2, 3) if aside or ahead]
_PLACEHOLDER = re.compile(r"<.*>|[A-Z]|[nijk]|row|col|number|amount|value|index|quantity|pile", re.IGNORECASE)


def listed_moves(text: str) -> list[str]:
    """The moves in brackets behind the last `Available moves:` of a text."""
    lists = _MOVES.findall(text)
    return _LISTED.findall(lists[-1]) if lists else []


class Told:
    """What a game itself has told a seat."""

    def __init__(self) -> None:
        self.forms: dict[str, None] = {}
        """What stood in brackets, in order."""
        self.listed: list[str] = []
        """The moves of the last list."""

    def hear(self, text: str) -> None:
        """Read more of it."""
        self.forms |= dict.fromkeys(form for form in _LISTED.findall(text) if not re.match(r"\[(?:GAME|Player)", form))
        self.listed = listed_moves(text) or self.listed

    def candidates(self, draw: Random) -> Iterator[str]:
        """Moves to try, no one twice: those listed, then forms as they stand and with other numbers, each shape of them
        as often as any, then every pair of squares."""
        seen = set()
        for move in self._in_turn(draw):
            if move not in seen:
                seen.add(move)
                yield move

    def _in_turn(self, draw: Random) -> Iterator[str]:
        yield from draw.sample(self.listed, len(self.listed))
        shapes: dict[str, list[str]] = {}
        for form in self.forms:
            shapes.setdefault(re.sub(r"\d+", "0", re.sub(r"\b[A-Za-z](?=\d)", "a", form)), []).append(form)
        alike = [*shapes.values()][-_SHAPES:]
        for _ in range(2 * _TRIES if alike else 0):
            form = draw.choice(draw.choice(alike))
            yield form if draw.random() < 0.2 else like(form, draw)
        for form, *_ in alike:
            pair = _PAIR.fullmatch(form[1:-1].strip())
            if pair is not None:
                yield from draw.sample(steps(*pair.group(1, 3, 4)), 64 * len(_STEPS))
        yield "[pass]"


def like(form: str, draw: Random) -> str:
    """A move of the same form: other numbers; other squares, the second of two near the first.

    >>> like("[take 3]", Random(0)), like("[a2a3]", Random(1))
    ('[take 6]', '[b4b3]')
    """
    inside = form[1:-1]
    pair = _PAIR.fullmatch(inside.strip())
    if pair is not None:
        return draw.choice(steps(*pair.group(1, 3, 4)))
    pieces, letters = _PIECE.findall(inside), draw.random() < 0.5
    said = []
    for place, piece in enumerate(pieces):
        beside = "".join(pieces[max(0, place - 1) : place] + pieces[place + 1 : place + 2])
        if piece.isdigit():
            said.append(str(draw.randint(0, min(40, max(9, 2 * int(piece[:4]))))))
        elif letters and len(piece) == 1 and piece.isalpha() and any(map(str.isdigit, beside)):
            said.append(_letter(piece, draw.randrange(10)))
        elif _PLACEHOLDER.fullmatch(piece) and not any(map(str.isdigit, inside)):
            said.append(str(draw.randint(0, 20)))
        else:
            said.append(piece)
    return f"[{''.join(said)}]"


@functools.lru_cache(maxsize=64)
def steps(first: str, between: str, second: str) -> tuple[str, ...]:
    """Every move of the form of two squares, on a board of eight a side, from one to another that is near.

    Args:
        first: A letter of the first square, large or small.
        between: What stands between the squares.
        second: A letter of the second one.
    """
    return tuple(
        f"[{_letter(first, column)}{row}{between}{_letter(second, (column + aside) % 8)}{max(0, row + ahead)}]"
        for column in range(8)
        for row in range(1, 9)
        for aside, ahead in _STEPS
    )


def _letter(like: str, number: int) -> str:
    return chr(ord("a" if like.islower() else "A") + number)


class Trial:
    """A copy of a game on which one move after the other is tried; the game itself is never touched, nor is the shared
    random generator."""

    def __init__(self, env: Any, seat: int) -> None:
        self.env, self.seat = env, seat
        self._copy: Any = None
        self._used = 0

    def outcome(self, move: str) -> tuple[bool, bool]:
        """(whether the game takes a move, whether whoever makes it is out of it)"""
        outside = random.getstate()
        fresh = self._copy is None or self._used >= _USES
        try:
            self._copy = copy.deepcopy(self.env) if fresh else self._copy
            self._used = 1 if fresh else self._used + 1
            state, before = self._copy.state, len(self._copy.state.logs)
            self._copy.step(move)
            taken = taken_by(state, self.seat, before)
            rewards = state.rewards if isinstance(state.rewards, dict) else {}
            out = eliminated(state, self.seat)
            lost = out or bool(state.done and number(rewards.get(self.seat)) < 0)
            if taken or state.done or out or not hasattr(state, "error_count"):
                self._copy = None
            else:
                state.error_count = 0  # or the second that is none would be the last
        except Exception:  # a game that raises on a move has not taken it
            self._copy = None
            return False, False
        finally:
            random.setstate(outside)
        return (taken, lost) if fresh or not taken else self.outcome(move)


def found_move(env: Any, seat: int, told: Told, draw: Random, *, careful: bool = False) -> str | None:
    """A move the game takes from a seat; None where none was found.

    Args:
        careful: Rather one that does not lose at once. A look at what comes is fair only where nothing is hidden.
    """
    trial, legal, count = Trial(env, seat), "", 0
    for tried, move in enumerate(told.candidates(draw)):
        taken, lost = trial.outcome(move)
        if taken:
            legal, count = legal or move, count + 1
            if not (careful and lost):
                return move
        if tried >= _TRIES or count >= _SAFE:
            break
    return legal or None


def eliminated(state: Any, seat: int) -> bool:
    """Whether a seat is out of a game that others play on; most of TextArena's games keep no such list."""
    return seat in getattr(state, "elimination_order", ())


def taken_by(state: Any, seat: int, before: int) -> bool:
    """Whether a game has taken a seat's move, by what it logged since and what it knows of the seat."""
    refused = any("invalid move" in str(message).lower() for _, message in state.logs[before:])
    return not refused and not state.game_info.get(seat, {}).get("invalid_move")


def number(value: Any) -> float:
    """A reward that is a finite number; 0 where a game gives something else."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0
