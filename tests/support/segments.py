"""Segments for training, hand-written or generated."""

import math

from hypothesis import strategies as st

from whetstone.trajectory import Author, Segment, Tokens


def segment(ids, mask, advantage=1.0, logprob=math.nan, *, authors=None, turns=None):
    n = len(ids)
    authors = tuple(authors) if authors is not None else (Author.POLICY,) * n
    tokens = Tokens(tuple(ids), authors, (logprob,) * n, (0,) * n, (math.nan,) * n)
    advantages = tuple(advantage if m else 0.0 for m in mask)
    return Segment("t", 0, tokens, tuple(map(bool, mask)), tuple(turns) if turns else (0,) * n, advantages)


@st.composite
def forked_segments(draw, vocabulary=255):
    """Sample segments that share prefixes, as forks and groups do: each continues a prefix of an earlier one."""
    segments = []
    ids = st.lists(st.integers(0, vocabulary), min_size=1, max_size=14)
    for k in range(draw(st.integers(1, 7))):
        stem = ()
        if segments and draw(st.booleans()):
            parent = segments[draw(st.integers(0, k - 1))]
            stem = parent.tokens.ids[: draw(st.integers(0, len(parent)))]
        ids_of_fork = [*stem, *draw(ids)]
        mask = draw(st.lists(st.booleans(), min_size=len(ids_of_fork), max_size=len(ids_of_fork)))
        segments.append(segment(ids_of_fork, mask, draw(st.floats(-2, 2, width=32))))
    return segments
