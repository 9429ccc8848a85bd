"""Which tokens in front of an action were drawn by whoever acts, rather than given to it?

An engine computes the two in different ways, with other last bits. Told which are which, it computes them the same
way again where it no longer holds them: behind an eviction, in a fork, behind a kill.
"""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.chat import Context
from whetstone.trajectory import Author, Tokens, Turn, turns_of_segment

_DRAWN = (Author.POLICY, Author.OTHER_AGENT)


def drawn_spans(
    turns: Sequence[Turn], context: Context, begun: Tokens, conversation: int = 0
) -> tuple[tuple[int, int], ...]:
    """[from, to) of `context` and `begun`, one behind the other; none where history was rewritten.

    Args:
        turns: In front of the action.
        context: What it is drawn behind.
        begun: What it begins with already.
        conversation: The number of its conversation.
    """
    spans: list[tuple[int, int]] = []
    place = 0
    for turn in () if context.opens_segment else turns_of_segment(turns, conversation):
        place += len(turn.context)
        if context.tokens.keys[place : place + len(turn.action)] != turn.action.sequence.keys:
            return ()  # tokens were removed or replaced
        spans += _runs(turn.action, place)
        place += len(turn.action)
    return (*spans, *_runs(begun, len(context.ids)))


def count_sampled(tokens: Tokens) -> int:
    """Return the number of tokens that the policy sampled."""
    return sum(author is Author.POLICY for author in tokens.authors)


def _runs(tokens: Tokens, place: int) -> list[tuple[int, int]]:
    """Runs of drawn tokens, where they lie if the first of the tokens lies at `place`."""
    found: list[tuple[int, int]] = []
    for k, author in enumerate(tokens.authors):
        if author not in _DRAWN:
            continue
        if found and found[-1][1] == place + k:
            found[-1] = (found[-1][0], place + k + 1)
        else:
            found.append((place + k, place + k + 1))
    return found
