"""What would the model say here? Segments nobody sampled, made to ask about a place in an episode.

Easy to get wrong: what the model read in front of a turn begins where its segment was opened, not where the episode
began.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from whetstone.learning.token_index import IndexedTrajectory
from whetstone.trajectory import Author, Segment, Tokens, turns_of_segment


def context_of(held: IndexedTrajectory, turn: int) -> tuple[int, ...]:
    """What the model read in front of a turn's action."""
    turns = held.trajectory.turns
    if turns[turn].training_context is not None:
        return turns[turn].training_context.ids  # type: ignore[union-attr]
    own = [] if turns[turn].opens_segment else turns_of_segment(turns[:turn], turns[turn].conversation)
    before = chain.from_iterable((*t.context.ids, *t.action.ids) for t in own)
    return (*before, *turns[turn].context.ids)


def behind(held: IndexedTrajectory) -> Tokens:
    """What the model would have read next."""
    turns, closing = held.trajectory.turns, held.trajectory.closing
    last = turns[-1]
    so_far = (*context_of(held, len(turns) - 1), *last.action.ids)
    return Tokens.written((*so_far, *(closing.ids if closing is not None else ())), Author.ENVIRONMENT)


def probe(context: Sequence[int], ids: Sequence[int]) -> Segment:
    """A segment in which `ids` are asked about behind `context`."""
    tokens = Tokens.written((*context, *ids), Author.ENVIRONMENT)
    mask = (False,) * len(context) + (True,) * len(ids)
    return Segment("probe", 0, tokens, mask, (0,) * len(tokens))
