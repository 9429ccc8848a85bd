"""Spans of sampled tokens before an action, as opposed to prompt tokens.

An engine computes sampled and prompt tokens in different ways (decode and prefill), with different rounding. With these
spans it recomputes an evicted KV cache in the same way: after an eviction, in a fork, or after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.chat import Context
from whetstone.trajectory import Author, Tokens, Turn, list_segment_turns

_DRAWN = (Author.POLICY, Author.OTHER_AGENT)


def find_sampled_spans(
    turns: Sequence[Turn], context: Context, prefix: Tokens, conversation: int = 0
) -> tuple[tuple[int, int], ...]:
    """Return the spans [from, to) of sampled tokens in `context` followed by `prefix`.

    There are none if history was rewritten.

    Args:
        turns: Turns before the action.
        context: Context that the action is sampled in.
        prefix: Tokens at the start of the action.
        conversation: Number of its conversation.
    """
    spans: list[tuple[int, int]] = []
    place = 0
    for turn in () if context.opens_segment else list_segment_turns(turns, conversation):
        place += len(turn.context)
        if context.tokens.keys[place : place + len(turn.action)] != turn.action.sequence.keys:
            return ()  # tokens were removed or replaced
        spans += _runs(turn.action, place)
        place += len(turn.action)
    return (*spans, *_runs(prefix, len(context.ids)))


def count_sampled(tokens: Tokens) -> int:
    """Return the number of tokens that the policy sampled."""
    return sum(author is Author.POLICY for author in tokens.authors)


def _runs(tokens: Tokens, place: int) -> list[tuple[int, int]]:
    """Return runs of sampled tokens, as positions if the first of the tokens is at position `place`."""
    runs: list[tuple[int, int]] = []
    for k, author in enumerate(tokens.authors):
        if author not in _DRAWN:
            continue
        if runs and runs[-1][1] == place + k:
            runs[-1] = (runs[-1][0], place + k + 1)
        else:
            runs.append((place + k, place + k + 1))
    return runs
