"""Which rows begin with the same keys? Those where one was copied from another, as far as nobody wrote since.

Every stretch of a row that was written in one go has a number, and a copy keeps the numbers of what it was copied
from. Two rows hold the same keys where they have the same numbers, whatever tokens these are and whatever weights
made them.

Easy to get wrong: a row whose stretch was copied may be cut and written again. So a stretch grows only where it was
written last, and never after a cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

Stretches = list[tuple[int, int]]
"""(where it ends, its number), one behind the other from place 0."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Rows that begin with the same keys."""

    members: tuple[int, ...]
    """Which of the rows asked about."""
    length: int
    """Tokens they share, one at least; all of its own but the new one where a row stands alone."""

    @property
    def saved(self) -> int:
        """Keys that need not be read again."""
        return (len(self.members) - 1) * self.length


class Origins:
    """Where the keys of each row come from.

    Args:
        rows: How many there are.
    """

    def __init__(self, rows: int) -> None:
        self._stretches: list[Stretches] = [[] for _ in range(rows)]
        self._growing: list[int | None] = [None] * rows
        """The number of the stretch that the row's own last writing may go on with."""
        self._numbers = itertools.count()

    def written(self, row: int, start: int, end: int) -> None:
        """Places `start` to `end` of a row have new keys; what was behind is gone."""
        stretches = self._stretches[row]
        if stretches and stretches[-1] == (start, self._growing[row]):
            stretches[-1] = (end, stretches[-1][1])
            return
        number = self._growing[row] = next(self._numbers)
        self._stretches[row] = [*_cut(stretches, start), (end, number)]

    def copied(self, source: int, target: int, length: int) -> None:
        """One row has the first tokens of another, and nothing else."""
        self._stretches[target] = _cut(self._stretches[source], length)
        self._growing[target] = None

    def wiped(self, row: int) -> None:
        """Nothing is left in it."""
        self._stretches[row], self._growing[row] = [], None

    def shared(self, rows: Sequence[int], lengths: Sequence[int]) -> list[Shared]:
        """The rows parted into those that begin alike, so that as few keys as possible are read.

        Args:
            rows: [B] row numbers, each once.
            lengths: [B] how many tokens of each count, one at least.
        """
        known = [_cut(self._stretches[row], length) for row, length in zip(rows, lengths, strict=True)]
        first = _by_number(range(len(rows)), known, 0)
        return [shared for alike in first for shared in _parted(alike, known, lengths, 0)]

    def alike(self, rows: Sequence[int], lengths: Sequence[int]) -> list[Shared]:
        """The rows parted into those whose first so many keys are the same, and just so many; those of 0 left out.

        Args:
            rows: [B] row numbers, each once.
            lengths: [B] how many tokens of each count.
        """
        sets: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for member, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            if length:
                sets.setdefault(tuple(_cut(self._stretches[row], length)), []).append(member)
        return [Shared(tuple(members), lengths[members[0]]) for members in sets.values()]


def _parted(alike: list[int], known: Sequence[Stretches], lengths: Sequence[int], depth: int) -> list[Shared]:
    """Rows that are alike into their stretch at `depth`: together, or as they go on if that saves more."""
    if len(alike) == 1:
        return [Shared((alike[0],), lengths[alike[0]])]
    while True:
        end = min(known[member][depth][0] for member in alike)
        within = [member for member in alike if known[member][depth][0] > end]
        further = _by_number([member for member in alike if known[member][depth][0] == end], known, depth + 1)
        if within or len(further) > 1:
            break
        depth += 1
    together = Shared(tuple(alike), end)
    apart = _parted(within, known, lengths, depth) if within else []
    apart += [shared for group in further for shared in _parted(group, known, lengths, depth + 1)]
    return [together] if together.saved > sum(shared.saved for shared in apart) else apart


def _by_number(members: Sequence[int], known: Sequence[Stretches], depth: int) -> list[list[int]]:
    """Members parted by the number of their stretch at `depth`; who has none stands alone."""
    by_number: dict[int, list[int]] = {}
    for member in members:
        number = known[member][depth][1] if depth < len(known[member]) else ~member  # no number is below 0
        by_number.setdefault(number, []).append(member)
    return list(by_number.values())


def _cut(stretches: Stretches, length: int) -> Stretches:
    """Its first so many places."""
    kept: Stretches = []
    for end, number in stretches:
        kept.append((min(end, length), number))
        if end >= length:
            break
    return kept if length else []
