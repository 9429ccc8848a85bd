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
"""(end position, number) of the consecutive spans of a slot, from position 0."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Group of slots that share a prefix, returned by `PrefixSharing`."""

    members: tuple[int, ...]
    """Indices of the slots in the list that was passed."""
    length: int
    """Length of the shared prefix in tokens, at least 1. For a single slot: the number of tokens to consider."""

    @property
    def num_saved_keys(self) -> int:
        """Number of keys that are not read again because the prefix is read once for all members."""
        return (len(self.members) - 1) * self.length


class PrefixSharing:
    """Records which KV slots were copied from one another, to find shared prefixes.

    Created by `KVCache`, which reports every copy and wipe; forward passes report every write.

    Args:
        rows: Number of slots.
    """

    def __init__(self, rows: int) -> None:
        self._stretches: list[Stretches] = [[] for _ in range(rows)]
        self._growing: list[int | None] = [None] * rows
        """Number of the span that the slot's next write can extend."""
        self._numbers = itertools.count()

    def record_write(self, row: int, start: int, end: int) -> None:
        """Record that new keys were written to positions `start` to `end` of a slot.

        Keys at later positions become invalid.
        """
        stretches = self._stretches[row]
        if stretches and stretches[-1] == (start, self._growing[row]):
            stretches[-1] = (end, stretches[-1][1])
            return
        number = self._growing[row] = next(self._numbers)
        self._stretches[row] = [*_truncate(stretches, start), (end, number)]

    def record_copy(self, source: int, target: int, length: int) -> None:
        """Record that a slot contains only the first `length` tokens of another slot."""
        self._stretches[target] = _truncate(self._stretches[source], length)
        self._growing[target] = None

    def record_wipe(self, row: int) -> None:
        """Record that a slot contains no keys."""
        self._stretches[row], self._growing[row] = [], None

    def group_by_prefix(self, rows: Sequence[int], lengths: Sequence[int]) -> list[SharedPrefix]:
        """Group slots by shared prefix so that as few keys as possible are read.

        Args:
            rows: [B] slots, without duplicates.
            lengths: [B] number of tokens to consider in each slot, at least 1.

        Returns:
            Disjoint groups that contain every slot; a slot without a shared prefix is a separate group.
        """
        known = []
        for row, length in zip(rows, lengths, strict=True):
            stretches = self._stretches[row]
            is_whole = stretches and stretches[-1][0] <= length  # in decode steps nothing is cut
            known.append(stretches if is_whole else _truncate(stretches, length))
        groups: list[SharedPrefix] = []
        for members in _by_number(range(len(rows)), known, 0):
            if len(members) == 1:
                groups.append(SharedPrefix((members[0],), lengths[members[0]]))
                continue
            end = min(known[member][0][0] for member in members)
            numbers = [known[m][1][1] for m in members if len(known[m]) > 1 and known[m][0][0] == end]
            has_longer = sum(known[member][0][0] > end for member in members) > 1
            if has_longer or len(set(numbers)) < len(numbers):
                groups += _split_group(members, known, lengths, 0)
            else:  # siblings of one prompt share nothing more
                groups.append(SharedPrefix(tuple(members), end))
        return groups

    def group_equal(self, rows: Sequence[int], lengths: Sequence[int]) -> list[SharedPrefix]:
        """Group slots whose first `lengths` keys are equal, at exactly that length.

        Args:
            rows: [B] slots, without duplicates.
            lengths: [B] number of tokens to consider in each slot; slots of length 0 are omitted.

        Returns:
            Disjoint groups of the slots whose length is not 0.
        """
        sets: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for member, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            if length:
                sets.setdefault(tuple(_truncate(self._stretches[row], length)), []).append(member)
        return [SharedPrefix(tuple(members), lengths[members[0]]) for members in sets.values()]


def _split_group(
    members: list[int], known: Sequence[Stretches], lengths: Sequence[int], depth: int
) -> list[SharedPrefix]:
    """Group slots that share the spans up to `depth`, as one group or as smaller ones.

    The alternative that saves more keys is returned.
    """
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
    """Group slots by the number of their span at `depth`.

    A slot without that span is a separate group.
    """
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
