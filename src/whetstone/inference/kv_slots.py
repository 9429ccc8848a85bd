"""Allocation of KV slots to sequences, and prefix caching between them.

A sequence keeps its slot between turns. A new one takes a free slot, or the one that was idle longest. If another slot,
busy or not, has the same prefix, its keys are copied, not computed. Prefixes are found by chained hashes of blocks of
tokens, and compared token by token before use.

Note:
    Keys computed under other weights must not serve a new sequence. `stale` marks them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

BLOCK = 16
"""Number of tokens per block of the prefix search."""


@dataclass(slots=True, eq=False)
class KVSlot:
    """Contents of a KV slot."""

    number: int
    episode: str | None = None
    keys: list[int] = field(default_factory=list)
    """Identifiers of the tokens in the slot; see `TokenSequence.keys`."""
    computed_keys: list[int] = field(default_factory=list)
    """The same, marked by how they were computed; see `Request.computed_keys`. Slots share prefixes that were computed
    in the same way."""
    prompt: int = 0
    """Number of leading tokens that were computed as a prompt."""
    promised: Sequence[int] = ()
    """Tokens that the slot will contain after prefill."""
    busy: bool = False
    stale: bool = False
    """Whether some of its keys are of earlier weights."""
    used: int = 0
    """Counter at the last use; the slot with the smallest is evicted first."""
    blocks: list[int] = field(default_factory=list)
    """Hashes under which the slot is found, one per block from the start."""


class KVSlots:
    """KV slots of an engine.

    Args:
        count: Number of slots.
        share: Whether a slot can be truncated and its prefix copied. Otherwise it is extended or restarted.
    """

    def __init__(self, count: int, *, share: bool = True) -> None:
        self.share = share
        self.rows = [KVSlot(number) for number in range(count)]
        self.evictions = 0
        self._of_episode: dict[str, KVSlot] = {}
        self._by_block: dict[int, dict[KVSlot, None]] = {}
        self._free = list(range(count))  # a heap: low numbers first keeps those in use close together
        self._resting: dict[KVSlot, None] = {}  # in the order in which they became idle
        self._clock = 0

    @property
    def has_vacant_slot(self) -> bool:
        """Whether a slot is free or idle."""
        return bool(self._free or self._resting)

    def allocate_slot(
        self, episode: str, keys: Sequence[int], prompt: Sequence[int], usable: int
    ) -> tuple[KVSlot, tuple[KVSlot, int] | None] | str:
        """Allocate a slot for a prompt and mark it busy.

        Args:
            episode: Name of the episode.
            keys: Identifiers of the tokens of the prompt.
            prompt: The same, marked by how they are to be computed.
            usable: Number of leading tokens that need not be computed if they are in a slot.

        Returns:
            The slot, its `keys` truncated to the prefix that it shares with the prompt, and (slot, length) if a prefix
            is to be copied; or the reason why there is none: `full` (all are busy), or `soon` (another slot is
            computing the same prefix, and waiting for it is cheaper).
        """
        own = self._of_episode.get(episode)
        own = None if own is None or own.busy else own
        own_length = 0 if own is None else common_length(own.keys, keys, usable)
        source, length, coming = self._longest(prompt, usable) if self.share else (None, 0, 0)
        if not self.share and own is not None and own_length < len(own.keys):
            own_length = 0
        if coming >= max(length, own_length) + BLOCK:
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
        if length > own_length and source is not None and source is not row:
            copied = (source, length)
        shared = max(own_length, length * (row is source))
        row.computed_keys = list(prompt[:length]) if copied is not None else row.computed_keys[:shared]
        row.keys, row.promised = list(keys[: len(row.computed_keys)]), prompt
        row.prompt = next((i for i, key in enumerate(row.computed_keys) if key < 0), len(row.computed_keys))
        row.stale = row.stale and copied is None and own_length > 0
        self._find_under(row, prompt)
        return row, copied

    def mark_idle(self, row: KVSlot) -> None:
        """Mark a slot idle after its generation; the keys stay until the slot is needed."""
        self._clock += 1
        row.busy, row.used, row.promised = False, self._clock, ()
        if row.episode is None:
            self._leave(row)
            heapq.heappush(self._free, row.number)
        else:
            self._find_under(row, row.computed_keys)
            self._resting[row] = None

    def release_slot(self, episode: str) -> None:
        """Release the slot of a finished episode.

        Its keys can still serve others, but the slot is reused first.
        """
        row = self._of_episode.pop(episode, None)
        if row is None:
            return
        row.episode = None
        if not row.busy:
            self._resting.pop(row, None)
            heapq.heappush(self._free, row.number)

    def clear_slot(self, row: KVSlot) -> None:
        """Discard the keys of a slot."""
        row.keys, row.computed_keys, row.promised = [], [], ()
        self._find_under(row, ())

    def invalidate_prefixes(self, *, keep: bool) -> None:
        """Invalidate all prefixes after a weight change.

        With `keep`, their owners continue with their keys.
        """
        for row in self.rows:
            self._find_under(row, ())
            row.stale = row.stale or bool(row.keys)
            if not keep:
                row.keys, row.computed_keys, row.stale = [], [], False

    def _next(self, source: KVSlot | None) -> KVSlot | None:
        """Return a free slot, or the one idle longest; preferably not the one that is the source of a copy."""
        if self._free:
            number = heapq.heappop(self._free)
            if source is not None and number == source.number and self._free:
                number = heapq.heapreplace(self._free, number)
            return self.rows[number]
        row = next(iter(self._resting), None)
        if row is not None:
            self.evictions += 1
        return row

    def _leave(self, row: KVSlot) -> None:
        if row.episode is not None and self._of_episode.get(row.episode) is row:
            del self._of_episode[row.episode]
        row.episode = None
        row.stale = False

    def _longest(self, prompt: Sequence[int], usable: int) -> tuple[KVSlot | None, int, int]:
        """Return (slot with the longest prefix, its computed length, maximum length of any computed or pending
        prefix)."""
        best: tuple[KVSlot | None, int] = (None, 0)
        coming = 0
        candidates: dict[KVSlot, None] = {}
        for block in _hashes(prompt, usable):
            slots = self._by_block.get(block)
            if not slots:
                break
            candidates = slots
        for row in candidates:
            computed = common_length(row.computed_keys, prompt, usable)
            if computed > best[1]:
                best = (row, computed)
            if row.promised:
                coming = max(coming, common_length(row.promised, prompt, usable))
        return *best, coming

    def _find_under(self, row: KVSlot, ids: Sequence[int]) -> None:
        """Index a slot by the blocks of `ids` only."""
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
    """Return one hash per block, of the block and all tokens before it."""
    hashes: list[int] = []
    chained = 0
    for end in range(BLOCK, length + 1, BLOCK):
        chained = hash((chained, tuple(ids[end - BLOCK : end])))
        hashes.append(chained)
    return hashes


def common_length(one: Sequence[int], other: Sequence[int], max_length: int) -> int:
    """Return the length of the common prefix, at most `max_length`."""
    limit = min(len(one), len(other), max_length)
    if list(one[:limit]) == list(other[:limit]):
        return limit
    return next(i for i in range(limit) if one[i] != other[i])
