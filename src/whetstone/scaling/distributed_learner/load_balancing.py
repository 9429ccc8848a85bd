"""Load balancing of segments between ranks, in rounds of forward passes with similar costs.

Ranks gather a layer's weights together, so all ranks wait for the slowest in every round. The passes of one round must
therefore have similar costs; similar sums are not enough.

Note:
    A rank without a pass in a round would block the others forever. Only the last round can be incomplete; ranks
    without work compute a dummy pass in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from whetstone.learning.packing import PackedPiece, split_pieces
from whetstone.trajectory import Segment

Cost = Callable[[PackedPiece], float]
"""Function that returns the cost of computing a piece, in any unit."""
_FINEST = 256
"""Number of tokens below which a prefix tree is not cut, because its parts would compute the shared tokens again."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Segments that one rank computes in one round; empty if there were fewer pieces than ranks."""

    indices: tuple[int, ...]
    """Ascending indices of segments."""
    cost: float
    """Summed cost of the segments."""


@dataclass(slots=True)
class _Slot:
    """Pass of one rank to which pieces are assigned."""

    pieces: list[int]
    tokens: int = 0
    cost: float = 0.0


def partition_pieces(
    pieces: Sequence[PackedPiece], ranks: int, *, token_budget: int, cost: Cost
) -> list[list[tuple[int, ...]]]:
    """Divide pieces between ranks in rounds of balanced cost.

    Assigns the most expensive piece first, each to the cheapest pass with room (longest processing time first), in as
    few rounds as have room for all. Passes of similar cost then form a round, and the order of ranks alternates.

    Every piece is in exactly one pass. A piece above the budget has a separate pass. The sums of two ranks differ by at
    most the cost of the most expensive pass.

    Args:
        pieces: Pieces to divide.
        ranks: Number of ranks.
        token_budget: Maximum number of tokens of one pass.
        cost: Cost of a piece.

    Returns:
        [rounds][ranks] indices of the pieces that each rank computes; empty if there are fewer pieces than ranks.

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
    pieces: Sequence[PackedPiece], order: Sequence[int], count: int, token_budget: int, cost: Cost
) -> list[_Slot] | None:
    """Assign all pieces to `count` passes; None if they do not fit."""
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


def partition_segments(
    segments: Sequence[Segment], ranks: int, *, token_budget: int, share: bool, cost: Cost
) -> list[list[Partition]]:
    """Divide segments between ranks in rounds of balanced cost.

    With `share`, segments with a shared prefix are kept together as a tree. A tree is cut if it is larger than a rank's
    equal part of all tokens, unless it is small.

    Returns:
        [rounds][ranks] segments that each rank computes.
    """
    trees = split_pieces(segments, token_budget=token_budget, share=share)
    fair = -(-sum(piece.tokens for piece in trees) // ranks)
    room = min(token_budget, max(fair, _FINEST))
    pieces = trees if all(p.tokens <= room for p in trees) else split_pieces(segments, token_budget=room, share=share)
    return [
        [
            Partition(tuple(sorted(i for n in slot for i in pieces[n].indices)), sum(cost(pieces[n]) for n in slot))
            for slot in row
        ]
        for row in partition_pieces(pieces, ranks, token_budget=token_budget, cost=cost)
    ]


def compute_balance(rounds: Sequence[Sequence[Partition]]) -> float:
    """Compute the balance of rounds, from 0 to 1: total cost divided by ranks × cost of the slowest rank per round.

    It is 1 without cost.
    """
    longest = sum(max(slot.cost for slot in row) for row in rounds)
    return sum(slot.cost for row in rounds for slot in row) / (len(rounds[0]) * longest) if longest else 1.0
