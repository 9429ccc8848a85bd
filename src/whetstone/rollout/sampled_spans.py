"""Spans of sampled tokens in a context, and counts of sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.chat import Context
from whetstone.trajectory import Author, Tokens, Turn, list_segment_turns

_DRAWN = (Author.POLICY, Author.OTHER_AGENT)


def find_sampled_spans(
    turns: Sequence[Turn], context: Context, prefix: Tokens, conversation: int = 0
) -> tuple[tuple[int, int], ...]:
    """Return the spans [from, to) of sampled tokens in `context` followed by `prefix`; empty after a rewritten history.

    An engine computes sampled and prompt tokens in different ways (decode and prefill), with different rounding. With
    these spans it recomputes an evicted KV cache in the same way.

    Args:
        turns: Turns before the action.
        context: Context in which the action is sampled.
        prefix: Tokens at the start of the action.
        conversation: Number of the action's conversation.
    """
    spans: list[tuple[int, int]] = []
    place = 0
    for turn in () if context.opens_segment else list_segment_turns(turns, conversation):
        place += len(turn.context)
        keys = turn.action.sequence.keys if turn.action.media else turn.action.ids
        if context.tokens.keys[place : place + len(keys)] != keys:
            return ()  # tokens were removed or replaced
        spans += _runs(turn.action, place)
        place += len(turn.action)
    return (*spans, *_runs(prefix, len(context.ids)))


def count_sampled(tokens: Tokens) -> int:
    """Return the number of tokens that the policy sampled, including those of masked turns."""
    return sum(
        author is Author.POLICY or _is_masked(author, version)
        for author, version in zip(tokens.authors, tokens.versions, strict=True)
    )


def _is_masked(author: Author, version: int) -> bool:
    """Return whether a token was sampled under an action mask; other inserted tokens have no policy version."""
    return author is Author.INSERTED and version >= 0


def _runs(tokens: Tokens, place: int) -> list[tuple[int, int]]:
    """Return runs [from, to) of sampled tokens; `place` is the position of the first token."""
    if tokens.authors.count(Author.POLICY) == len(tokens):  # the common case, without a loop in Python
        return [(place, place + len(tokens))] if len(tokens) else []
    runs: list[tuple[int, int]] = []
    for k, (author, version) in enumerate(zip(tokens.authors, tokens.versions, strict=True)):
        if author not in _DRAWN and not _is_masked(author, version):
            continue
        if runs and runs[-1][1] == place + k:
            runs[-1] = (runs[-1][0], place + k + 1)
        else:
            runs.append((place + k, place + k + 1))
    return runs
