"""Log-prob queries: segments that were not sampled, for the log-probs of given tokens at a point of an episode.

Note:
    The context of a turn starts at the start of its segment, not of the episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from whetstone.learning.token_index import IndexedTrajectory
from whetstone.trajectory import Author, Segment, Tokens, TokenSequence, list_segment_turns


def get_turn_context(entry: IndexedTrajectory, turn: int) -> TokenSequence:
    """Return the tokens that the model reads before the action of a turn.

    Args:
        entry: Trajectory.
        turn: Index of the turn.
    """
    turns = entry.trajectory.turns
    other = turns[turn].training_context
    if other is not None:
        return other.sequence
    own = [] if turns[turn].opens_segment else list_segment_turns(turns[:turn], turns[turn].conversation)
    before = chain.from_iterable((t.context, t.action) for t in own)
    return Tokens.concatenate((*before, turns[turn].context)).sequence


def next_context(entry: IndexedTrajectory) -> Tokens:
    """Return the tokens that the model would read before the turn after the last one.

    For the bootstrap value of a truncated episode.
    """
    turns, closing = entry.trajectory.turns, entry.trajectory.closing
    so_far = get_turn_context(entry, len(turns) - 1) + turns[-1].action.sequence
    return Tokens.from_ids(so_far if closing is None else so_far + closing.sequence, Author.ENVIRONMENT)


def logprob_query(context: TokenSequence, ids: Sequence[int]) -> Segment:
    """Return a segment in which the log-probs of `ids` after `context` are computed.

    Args:
        context: Tokens before.
        ids: Token ids whose log-probs are wanted; they are the action tokens of the segment.
    """
    tokens = Tokens.from_ids(context + TokenSequence(ids), Author.ENVIRONMENT)
    mask = (False,) * len(context) + (True,) * len(ids)
    return Segment("probe", 0, tokens, mask, (0,) * len(tokens))
