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

from whetstone.inference.protocol import EngineLoad

BLOCK = 16
"""Number of tokens per hashed block of the prefix search."""


@dataclass(slots=True, eq=False)
class KVSlot:
    """Contents and state of one KV slot."""

    number: int
    """Index of the slot in the KV cache."""
    episode: str | None = None
    """Episode that owns the slot; None: the slot is free."""
    keys: list[int] = field(default_factory=list)
    """Identifiers of the tokens in the slot; see `TokenSequence.keys`."""
    computed_keys: list[int] = field(default_factory=list)
    """`keys`, with the complement of tokens that were fed one at a time; see `Request.computed_keys`. Slots share only
    prefixes that were computed in the same way."""
    prompt: int = 0
    """Number of leading tokens that were computed as a prompt, not one at a time."""
    promised: Sequence[int] = ()
    """Tokens that the slot will contain after the running prefill."""
    busy: bool = False
    """Whether a request uses the slot at the moment."""
    stale: bool = False
    """Whether some keys were computed with earlier weights; such a prefix is never shared."""
    used: int = 0
    """Value of the clock at the last use."""
    blocks: list[int] = field(default_factory=list)
    """Hashes under which the slot is indexed, one per block from the start."""


class KVSlots:
    """Allocates the KV slots of an engine to episodes, and finds cached prefixes.

    Created by `LocalEngine`. The object only keeps the records; the keys are in `KVCache`.

    Args:
        count: Number of slots.
        share: Whether a slot can be truncated and its prefix copied. False for models with a recurrent state, whose
            sequences can only be extended or restarted.
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
        """Whether a slot is free or idle, so that a request can be admitted."""
        return bool(self._free or self._resting)

    def measure_load(self, num_queued: int) -> EngineLoad:
        """Return the load: slots of episodes in progress, and the number of slots that such episodes lost.

        Args:
            num_queued: Number of requests without a slot; they wait for one if none is free or idle.
        """
        waiting = 0 if self.has_vacant_slot else num_queued
        return EngineLoad(len(self._of_episode) / len(self.rows), waiting, self.evictions)

    def allocate_slot(
        self, episode: str, keys: Sequence[int], prompt: Sequence[int], usable: int
    ) -> tuple[KVSlot, tuple[KVSlot, int] | None] | str:
        """Allocate a slot for a prompt, with the longest cached prefix, and mark it busy.

        Args:
            episode: Name of the episode. Its own slot is used if it has one that is not busy.
            keys: Identifiers of the tokens of the prompt; see `TokenSequence.keys`.
            prompt: `keys`, marked by how they are to be computed; see `Request.computed_keys`.
            usable: Number of leading tokens whose keys may be reused.

        Returns:
            (slot, copy): the slot, whose `keys` are truncated to the prefix that it shares with the prompt, and (source
            slot, length) of a prefix to copy into it, or None. If no slot is allocated, the reason: `full` (all slots
            are busy), or `soon` (another slot is computing a longer prefix, and waiting for it is cheaper).
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
        """Mark a slot idle after its generation or scoring.

        Its keys stay until the slot is needed for another episode.
        """
        self._clock += 1
        row.busy, row.used, row.promised = False, self._clock, ()
        if row.episode is None:
            self._leave(row)
            heapq.heappush(self._free, row.number)
        else:
            self._find_under(row, row.computed_keys)
            self._resting[row] = None

    def release_slot(self, episode: str) -> None:
        """Release the slot of a finished episode, if it has one.

        Other prompts can still use its keys, but the slot is the first to be reused.
        """
        row = self._of_episode.pop(episode, None)
        if row is None:
            return
        row.episode = None
        if not row.busy:
            self._resting.pop(row, None)
            heapq.heappush(self._free, row.number)

    def clear_slot(self, row: KVSlot) -> None:
        """Discard the keys of a slot, so that no prompt uses them.

        Called after a failed request.
        """
        row.keys, row.computed_keys, row.promised = [], [], ()
        self._find_under(row, ())

    def invalidate_prefixes(self, *, keep: bool) -> None:
        """Stop sharing all cached prefixes, after a weight change.

        Args:
            keep: Whether episodes continue with their own keys of the earlier weights; False: all keys are discarded.
        """
        for row in self.rows:
            self._find_under(row, ())
            row.stale = row.stale or bool(row.keys)
            if not keep:
                row.keys, row.computed_keys, row.stale = [], [], False

    def _next(self, source: KVSlot | None) -> KVSlot | None:
        """Return a free slot, else the one that has been idle longest, else None.

        A free slot other than `source`, from which a prefix is copied, is preferred.
        """
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
        """Return (slot with the longest computed prefix, its length, longest computed or promised length)."""
        best: tuple[KVSlot | None, int] = (None, 0)
        coming = 0
        candidates: dict[KVSlot, None] = {}
        for block in _hashes(prompt, usable):
            slots = self._by_block.get(block)
            if not slots:
                break
            candidates = slots
        for row in candidates:
            if len(row.computed_keys) > best[1]:
                computed = common_length(row.computed_keys, prompt, usable)
                if computed > best[1]:
                    best = (row, computed)
            if best[1] == usable:  # nothing is longer
                return *best, coming
            if len(row.promised) > coming:
                coming = max(coming, common_length(row.promised, prompt, usable))
        return *best, coming

    def _find_under(self, row: KVSlot, ids: Sequence[int]) -> None:
        """Index a slot by the blocks of `ids`, and by no others."""
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
    """Return one hash per complete block, of the block and of all tokens before it."""
    hashes: list[int] = []
    chained = 0
    for end in range(BLOCK, length + 1, BLOCK):
        chained = hash((chained, tuple(ids[end - BLOCK : end])))
        hashes.append(chained)
    return hashes


def common_length(one: Sequence[int], other: Sequence[int], max_length: int) -> int:
    """Return the length of the common prefix of two sequences, at most `max_length`."""
    limit = min(len(one), len(other), max_length)
    if one[:limit] == other[:limit]:
        return limit
    return next((i for i in range(limit) if one[i] != other[i]), limit)
