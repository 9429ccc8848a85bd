"""Who computes what? Trees of segments are dealt out by cost, in rounds in which all ranks have about as much to do.

Ranks gather a layer's weights together, so in every round all wait for the slowest. What matters is therefore that the
passes of one round cost alike, not only that sums do.

Easy to get wrong: a rank without a pass in a round would leave the others waiting for ever. A round that is not full is
the last one, and who has nothing there computes something for show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from whetstone.learning.packing import Piece, pieces_of
from whetstone.trajectory import Segment

Cost = Callable[[Piece], float]
"""What a piece takes to compute; any unit."""
_FINEST = 256
"""Tokens below which a tree is not cut to be dealt out: what its parts share would be computed once for each."""


@dataclass(frozen=True, slots=True)
class Dealt:
    """What a rank computes in a round; nothing where there was less than ranks."""

    indices: tuple[int, ...]
    """Segments, ascending."""
    cost: float


@dataclass(slots=True)
class _Slot:
    """One pass of one rank."""

    pieces: list[int]
    tokens: int = 0
    cost: float = 0.0


def deal(pieces: Sequence[Piece], ranks: int, *, token_budget: int, cost: Cost) -> list[list[tuple[int, ...]]]:
    """[rounds][ranks] which pieces each rank computes in each round; empty where there are fewer than ranks.

    The dearest first, each to the pass that is cheapest so far and has room (longest processing time first), over as
    few rounds as have room for all. Then passes that cost alike make a round, and ranks take turns at the dearer end.

    Every piece is in exactly one pass. A piece above the budget has a pass of its own. Sums of two ranks differ by the
    cost of the dearest pass at most.

    Args:
        token_budget: Tokens of one pass.

    Source: Graham 1969, Bounds on multiprocessing timing anomalies, for the rule and its bound.
    """
    if not pieces:
        return []
    order = sorted(range(len(pieces)), key=lambda i: (-cost(pieces[i]), i))
    rounds = max(1, -(-sum(piece.tokens for piece in pieces) // (ranks * token_budget)))
    while (slots := _filled(pieces, order, rounds * ranks, token_budget, cost)) is None:
        rounds += 1
    slots.sort(key=lambda slot: -slot.cost)
    dealt = []
    for k in range(rounds):
        row = [tuple(sorted(slot.pieces)) for slot in slots[k * ranks : (k + 1) * ranks]]
        if any(row):
            dealt.append(row if k % 2 == 0 else row[::-1])
    return dealt


def _filled(
    pieces: Sequence[Piece], order: Sequence[int], count: int, token_budget: int, cost: Cost
) -> list[_Slot] | None:
    """So many passes with all pieces in them; None where there is no room."""
    slots = [_Slot([]) for _ in range(count)]
    for i in order:
        fitting = [slot for slot in slots if not slot.pieces or slot.tokens + pieces[i].tokens <= token_budget]
        if not fitting:
            return None
        slot = min(fitting, key=lambda slot: slot.cost)
        slot.pieces.append(i)
        slot.tokens += pieces[i].tokens
        slot.cost += cost(pieces[i])
    return slots


def rounds_of(
    segments: Sequence[Segment], ranks: int, *, token_budget: int, share: bool, cost: Cost
) -> list[list[Dealt]]:
    """[rounds][ranks] which segments each rank computes in each round, as trees where they `share`.

    Trees are cut where one is more than a rank's part of the whole, unless they are small.
    """
    whole = pieces_of(segments, token_budget=token_budget, share=share)
    fair = -(-sum(piece.tokens for piece in whole) // ranks)
    room = min(token_budget, max(fair, _FINEST))
    pieces = whole if all(p.tokens <= room for p in whole) else pieces_of(segments, token_budget=room, share=share)
    return [
        [
            Dealt(tuple(sorted(i for n in slot for i in pieces[n].indices)), sum(cost(pieces[n]) for n in slot))
            for slot in row
        ]
        for row in deal(pieces, ranks, token_budget=token_budget, cost=cost)
    ]


def balance(rounds: Sequence[Sequence[Dealt]]) -> float:
    """What ranks compute, over what they could in the time the dearest of each round takes; 1 where nothing is."""
    longest = sum(max(slot.cost for slot in row) for row in rounds)
    return sum(slot.cost for row in rounds for slot in row) / (len(rounds[0]) * longest) if longest else 1.0
