"""Tracks which KV slots share a prefix: those copied from one another, up to the first token written since.

Every span of a slot that was written in one sequence of writes has a number, and a copy keeps the numbers of its
source. Two slots contain the same keys if their numbers are equal, whatever the tokens and the weights.

Note:
    A slot whose span was copied can be cut and written again. A span therefore grows only if it was written last, and
    never after a cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

Stretches = list[tuple[int, int]]
"""(end position, number) of consecutive spans from position 0."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Slots that share a prefix."""

    members: tuple[int, ...]
    """Indices of the slots among the requested ones."""
    length: int
    """Length of the shared prefix in tokens, at least one; for a single slot, all its tokens except the new one."""

    @property
    def num_saved_keys(self) -> int:
        """Number of keys that need not be read again."""
        return (len(self.members) - 1) * self.length


class PrefixSharing:
    """Records for each KV slot which span its keys were computed in.

    Args:
        rows: Number of slots.
    """

    def __init__(self, rows: int) -> None:
        self._stretches: list[Stretches] = [[] for _ in range(rows)]
        self._growing: list[int | None] = [None] * rows
        """Number of the span that the slot's next write can extend."""
        self._numbers = itertools.count()

    def record_write(self, row: int, start: int, end: int) -> None:
        """Record that positions `start` to `end` of a slot have new keys.

        Later positions become invalid.
        """
        stretches = self._stretches[row]
        if stretches and stretches[-1] == (start, self._growing[row]):
            stretches[-1] = (end, stretches[-1][1])
            return
        number = self._growing[row] = next(self._numbers)
        self._stretches[row] = [*_truncate(stretches, start), (end, number)]

    def record_copy(self, source: int, target: int, length: int) -> None:
        """Record that a slot contains the first tokens of another, and nothing else."""
        self._stretches[target] = _truncate(self._stretches[source], length)
        self._growing[target] = None

    def record_wipe(self, row: int) -> None:
        """Record that a slot is empty."""
        self._stretches[row], self._growing[row] = [], None

    def group_by_prefix(self, rows: Sequence[int], lengths: Sequence[int]) -> list[SharedPrefix]:
        """Group slots by shared prefix so that as few keys as possible are read.

        Args:
            rows: [B] slots, without duplicates.
            lengths: [B] number of tokens to consider in each, at least one.
        """
        known = [_truncate(self._stretches[row], length) for row, length in zip(rows, lengths, strict=True)]
        first = _by_number(range(len(rows)), known, 0)
        return [shared for members in first for shared in _split_group(members, known, lengths, 0)]

    def group_equal(self, rows: Sequence[int], lengths: Sequence[int]) -> list[SharedPrefix]:
        """Group slots whose first `lengths` keys are equal, at exactly that length.

        Slots of length 0 are omitted.

        Args:
            rows: [B] slots, without duplicates.
            lengths: [B] number of tokens to consider in each.
        """
        sets: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for member, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            if length:
                sets.setdefault(tuple(_truncate(self._stretches[row], length)), []).append(member)
        return [SharedPrefix(tuple(members), lengths[members[0]]) for members in sets.values()]


def _split_group(
    members: list[int], known: Sequence[Stretches], lengths: Sequence[int], depth: int
) -> list[SharedPrefix]:
    """Group slots that are equal into their span at `depth`: as one group, or as smaller ones if that saves more."""
    if len(members) == 1:
        return [SharedPrefix((members[0],), lengths[members[0]])]
    while True:
        end = min(known[member][depth][0] for member in members)
        within = [member for member in members if known[member][depth][0] > end]
        further = _by_number([member for member in members if known[member][depth][0] == end], known, depth + 1)
        if within or len(further) > 1:
            break
        depth += 1
    together = SharedPrefix(tuple(members), end)
    separate = _split_group(within, known, lengths, depth) if within else []
    separate += [shared for group in further for shared in _split_group(group, known, lengths, depth + 1)]
    return [together] if together.num_saved_keys > sum(shared.num_saved_keys for shared in separate) else separate


def _by_number(members: Sequence[int], known: Sequence[Stretches], depth: int) -> list[list[int]]:
    """Group members by the number of their span at `depth`; each member without one is a group."""
    by_number: dict[int, list[int]] = {}
    for member in members:
        number = known[member][depth][1] if depth < len(known[member]) else ~member  # no number is below 0
        by_number.setdefault(number, []).append(member)
    return list(by_number.values())


def _truncate(stretches: Stretches, length: int) -> Stretches:
    """Return the spans of the first `length` positions."""
    spans: Stretches = []
    for end, number in stretches:
        spans.append((min(end, length), number))
        if end >= length:
            break
    return spans if length else []
