"""What would the model say here? Segments nobody sampled, made to ask about a place in an episode.

Easy to get wrong: what the model read in front of a turn begins where its segment was opened, not where the episode
began.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from whetstone.learning.token_index import IndexedTrajectory
from whetstone.trajectory import Author, Segment, Tokens, TokenSequence, turns_of_segment


def context_of(held: IndexedTrajectory, turn: int) -> TokenSequence:
    """Return the tokens that the model read before the action of a turn."""
    turns = held.trajectory.turns
    other = turns[turn].training_context
    if other is not None:
        return other.sequence
    own = [] if turns[turn].opens_segment else turns_of_segment(turns[:turn], turns[turn].conversation)
    before = chain.from_iterable((t.context, t.action) for t in own)
    return Tokens.joined((*before, turns[turn].context)).sequence


def behind(held: IndexedTrajectory) -> Tokens:
    """Return the tokens that the model would have read next."""
    turns, closing = held.trajectory.turns, held.trajectory.closing
    so_far = context_of(held, len(turns) - 1) + turns[-1].action.sequence
    return Tokens.written(so_far if closing is None else so_far + closing.sequence, Author.ENVIRONMENT)


def probe(context: TokenSequence, ids: Sequence[int]) -> Segment:
    """Return a segment in which log-probs of `ids` after `context` are computed."""
    tokens = Tokens.written(context + TokenSequence(ids), Author.ENVIRONMENT)
    mask = (False,) * len(context) + (True,) * len(ids)
    return Segment("probe", 0, tokens, mask, (0,) * len(tokens))
