"""Which row holds whose keys, and where do the keys of a new prompt lie already?

A sequence keeps its row when it rests between turns. A new one takes a free row, or the one that rested
longest; if another row, busy or not, begins with the same tokens, these keys are copied, not computed.
Beginnings are found by chained hashes of blocks of tokens, and compared token by token before they count.

Easy to get wrong: keys computed under other weights must not serve a new sequence. `stale` marks them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

BLOCK = 16
"""Beginnings are found in whole blocks of so many tokens."""


@dataclass(slots=True, eq=False)
class Row:
    """What a row of the cache holds."""

    number: int
    episode: str | None = None
    keys: list[int] = field(default_factory=list)
    """What identifies the tokens in the row; see `TokenSequence.keys`."""
    computed_keys: list[int] = field(default_factory=list)
    """The same, as they were computed; see `Request.computed_keys`. Rows share what was computed in the same way."""
    prompt: int = 0
    """How many of its first tokens were computed as a prompt's."""
    promised: Sequence[int] = ()
    """Tokens that will be in it when its prompt is computed."""
    busy: bool = False
    stale: bool = False
    """Some of its keys are of weights before the current ones."""
    used: int = 0
    """When it last served, as a count; the smallest is given away first."""
    blocks: list[int] = field(default_factory=list)
    """Hashes it is found under, one for each whole block from the start."""


class Rows:
    """The rows of an engine.

    Args:
        count: How many there are.
        share: Whether a row can be cut, and its beginning copied. Otherwise it is gone on with or begun anew.
    """

    def __init__(self, count: int, *, share: bool = True) -> None:
        self.share = share
        self.rows = [Row(number) for number in range(count)]
        self.evictions = 0
        self._of_episode: dict[str, Row] = {}
        self._by_block: dict[int, dict[Row, None]] = {}
        self._free = list(range(count))  # a heap: low numbers first keeps those in use close together
        self._resting: dict[Row, None] = {}  # in the order they came to rest
        self._clock = 0

    @property
    def vacant(self) -> bool:
        """Whether a row is free or resting."""
        return bool(self._free or self._resting)

    def take(
        self, episode: str, keys: Sequence[int], prompt: Sequence[int], usable: int
    ) -> tuple[Row, tuple[Row, int] | None] | str:
        """A row for a prompt, made busy.

        Args:
            keys: What identifies the tokens of the prompt.
            prompt: The same, as they are to be computed.
            usable: How many of the prompt's first tokens need not be computed if they are in a row.

        Returns:
            The row, its `keys` cut to the prefix that it shares with the prompt, and (row, length) if a prefix is
            to be copied; or why there is none: `full` (all are busy), or `soon` (another row is computing
            the same prefix, and waiting for it is cheaper).
        """
        own = self._of_episode.get(episode)
        own = None if own is None or own.busy else own
        kept = 0 if own is None else common_length(own.keys, keys, usable)
        source, length, coming = self._longest(prompt, usable) if self.share else (None, 0, 0)
        if not self.share and own is not None and kept < len(own.keys):
            kept = 0
        if coming >= max(length, kept) + BLOCK:
            return "soon"
        row = own or self._next(source)
        if row is None:
            return "full"
        if row is not own:
            self._leave(row)
            row.episode, self._of_episode[episode] = episode, row
        self._resting.pop(row, None)
        row.busy = True
        copied = None
        if length > kept and source is not None and source is not row:
            copied = (source, length)
        shared = max(kept, length * (row is source))
        row.computed_keys = list(prompt[:length]) if copied is not None else row.computed_keys[:shared]
        row.keys, row.promised = list(keys[: len(row.computed_keys)]), prompt
        row.prompt = next((i for i, key in enumerate(row.computed_keys) if key < 0), len(row.computed_keys))
        row.stale = row.stale and copied is None and kept > 0
        self._find_under(row, prompt)
        return row, copied

    def rest(self, row: Row) -> None:
        """Its generation is over; the keys stay until the row is needed."""
        self._clock += 1
        row.busy, row.used, row.promised = False, self._clock, ()
        if row.episode is None:
            self._leave(row)
            heapq.heappush(self._free, row.number)
        else:
            self._find_under(row, row.computed_keys)
            self._resting[row] = None

    def drop(self, episode: str) -> None:
        """The episode is over. Its keys may still serve others, but its row goes first."""
        row = self._of_episode.pop(episode, None)
        if row is None:
            return
        row.episode = None
        if not row.busy:
            self._resting.pop(row, None)
            heapq.heappush(self._free, row.number)

    def clear(self, row: Row) -> None:
        """Its keys are worth nothing."""
        row.keys, row.computed_keys, row.promised = [], [], ()
        self._find_under(row, ())

    def outdate(self, *, keep: bool) -> None:
        """The weights changed: no new sequence may begin with these keys; `keep`: their owners go on with them."""
        for row in self.rows:
            self._find_under(row, ())
            row.stale = row.stale or bool(row.keys)
            if not keep:
                row.keys, row.computed_keys, row.stale = [], [], False

    def _next(self, source: Row | None) -> Row | None:
        """A row nobody owns, or the one that rested longest; rather not the one that is to be copied from."""
        if self._free:
            number = heapq.heappop(self._free)
            if source is not None and number == source.number and self._free:
                number = heapq.heapreplace(self._free, number)
            return self.rows[number]
        row = next(iter(self._resting), None)
        if row is not None:
            self.evictions += 1
        return row

    def _leave(self, row: Row) -> None:
        if row.episode is not None and self._of_episode.get(row.episode) is row:
            del self._of_episode[row.episode]
        row.episode = None
        row.stale = False

    def _longest(self, prompt: Sequence[int], usable: int) -> tuple[Row | None, int, int]:
        """(the row that shares most, how much of it is computed, how much of any row's is or will be)"""
        best: tuple[Row | None, int] = (None, 0)
        coming = 0
        candidates: dict[Row, None] = {}
        for block in _hashes(prompt, usable):
            found = self._by_block.get(block)
            if not found:
                break
            candidates = found
        for row in candidates:
            computed = common_length(row.computed_keys, prompt, usable)
            if computed > best[1]:
                best = (row, computed)
            if row.promised:
                coming = max(coming, common_length(row.promised, prompt, usable))
        return *best, coming

    def _find_under(self, row: Row, ids: Sequence[int]) -> None:
        """Let the row be found under the blocks of `ids` and no others."""
        wanted = [] if row.stale else list(_hashes(ids, len(ids)))
        same = 0
        while same < min(len(wanted), len(row.blocks)) and wanted[same] == row.blocks[same]:
            same += 1
        for block in row.blocks[same:]:
            del self._by_block[block][row]
            if not self._by_block[block]:
                del self._by_block[block]
        for block in wanted[same:]:
            self._by_block.setdefault(block, {})[row] = None
        row.blocks = wanted


def _hashes(ids: Sequence[int], length: int) -> list[int]:
    """One for each whole block, of it and everything before it."""
    hashes: list[int] = []
    chained = 0
    for end in range(BLOCK, length + 1, BLOCK):
        chained = hash((chained, tuple(ids[end - BLOCK : end])))
        hashes.append(chained)
    return hashes


def common_length(held: Sequence[int], wanted: Sequence[int], most: int) -> int:
    """Return the length of the common prefix, at most `most`."""
    limit = min(len(held), len(wanted), most)
    if list(held[:limit]) == list(wanted[:limit]):
        return limit
    return next(i for i in range(limit) if held[i] != wanted[i])
