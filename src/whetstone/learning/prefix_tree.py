"""Prefix trees (tries) of token sequences, built from the sorted sequences.

Samples of one task repeat its prompt, forked episodes repeat their first turns. In the tree each shared run of
tokens occurs once. Only `TokenSequence.keys` are compared: a token's hidden state depends on the tokens and media
before it, not on the episode or the author.

Easy to get wrong: two samples often agree by chance for a token or two more. A branch for so few costs more than
it saves, so they are computed twice; what that is depends on the sequences alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]

WORTH_SHARING = 16
"""Tokens a shared run must save to become a node of its own."""


@dataclass(frozen=True, slots=True)
class Node:
    """A run of tokens that all sequences below it hold."""

    parent: int
    """Where the node in front of it stands in the list of nodes; -1 at a root."""
    start: int
    """Its first token's place in the sequences."""
    end: int
    """One behind its last token's place."""
    sequence: int
    """One of the sequences that hold it; at a leaf, the sequence that ends there."""
    leaf: bool
    """Whether a sequence ends here. Each sequence has a leaf of its own, which may hold no token."""

    def __len__(self) -> int:
        return self.end - self.start


def prefix_trees(sequences: Sequence[Keys], *, share: bool = True, worth: int = WORTH_SHARING) -> list[Node]:
    """The trees of sequences that begin alike, depth first: a node stands behind its parent.

    Args:
        sequences: Keys of the tokens, any lengths.
        share: Otherwise each sequence is a tree of its own.
        worth: Tokens a shared run must save to become a node.
    """
    if not share:
        return [Node(-1, 0, len(keys), i, True) for i, keys in enumerate(sequences)]
    order = sorted(range(len(sequences)), key=lambda i: (sequences[i].tolist(), i))
    # alike[k]: how many tokens the k-th in order begins with like the one before it
    alike = [0, *(_alike(sequences[a], sequences[b]) for a, b in pairwise(order))]
    nodes: list[Node] = []
    waiting = [(0, len(order), 0, -1)] if order else []
    while waiting:
        low, high, start, parent = waiting.pop()
        if high - low == 1:
            nodes.append(Node(parent, start, len(sequences[order[low]]), order[low], True))
            continue
        end = min(alike[low + 1 : high])
        cuts = [low, *(k for k in range(low + 1, high) if alike[k] == end), high]
        branches = list(pairwise(cuts))
        if (len(branches) - 1) * (end - start) >= worth:
            nodes.append(Node(parent, start, end, order[low], False))
            start, parent = end, len(nodes) - 1
        waiting += [(a, b, start, parent) for a, b in reversed(branches)]
    return nodes


def _alike(one: Keys, other: Keys) -> int:
    both = min(len(one), len(other))
    differing = np.flatnonzero(one[:both] != other[:both])
    return int(differing[0]) if len(differing) else both
