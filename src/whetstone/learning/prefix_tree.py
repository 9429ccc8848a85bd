"""Prefix trees (tries) of token sequences, built from the sorted sequences.

Samples of one task repeat its prompt, forked episodes repeat their first turns. In the tree each shared run of tokens
occurs once. Only `TokenSequence.keys` are compared: a token's hidden state depends on the tokens and media before it,
not on the episode or the author.

Note:
    Two samples often share one or two more tokens randomly. A branch for so few tokens costs more than it saves, so
    they are computed twice. The decision depends only on the sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]
"""[T] int64 identifiers of the tokens of a sequence; see `TokenSequence.keys`."""

MIN_SAVED_TOKENS = 16
"""Minimum number of tokens that a shared run must save to become a separate node."""


@dataclass(frozen=True, slots=True)
class Node:
    """Node of a prefix tree: a run of tokens that all sequences below it contain."""

    parent: int
    """Index of the parent in the list of nodes; −1 at a root."""
    start: int
    """Position of the node's first token in the sequences."""
    end: int
    """Position after the node's last token."""
    sequence: int
    """Index of a sequence that contains the node; at a leaf, of the sequence that ends there."""
    leaf: bool
    """Whether a sequence ends here. Each sequence has a separate leaf, which may contain no token."""

    def __len__(self) -> int:
        return self.end - self.start


def build_prefix_trees(
    sequences: Sequence[Keys], *, share: bool = True, min_saved_tokens: int = MIN_SAVED_TOKENS
) -> list[Node]:
    """Build the prefix trees of sequences, depth first: a node follows its parent.

    Args:
        sequences: Keys of the tokens, any lengths.
        share: Whether sequences share nodes; otherwise each is a separate tree.
        min_saved_tokens: Minimum number of tokens that a shared run must save to become a node.
    """
    if not share:
        return [Node(-1, 0, len(keys), i, True) for i, keys in enumerate(sequences)]
    order = sorted(range(len(sequences)), key=lambda i: (sequences[i].tolist(), i))
    # common[k]: length of the common prefix of the k-th in order with the one before it
    common = [0, *(_common_length(sequences[a], sequences[b]) for a, b in pairwise(order))]
    nodes: list[Node] = []
    waiting = [(0, len(order), 0, -1)] if order else []
    while waiting:
        low, high, start, parent = waiting.pop()
        if high - low == 1:
            nodes.append(Node(parent, start, len(sequences[order[low]]), order[low], True))
            continue
        end = min(common[low + 1 : high])
        cuts = [low, *(k for k in range(low + 1, high) if common[k] == end), high]
        branches = list(pairwise(cuts))
        if (len(branches) - 1) * (end - start) >= min_saved_tokens:
            nodes.append(Node(parent, start, end, order[low], False))
            start, parent = end, len(nodes) - 1
        waiting += [(a, b, start, parent) for a, b in reversed(branches)]
    return nodes


def _common_length(one: Keys, other: Keys) -> int:
    both = min(len(one), len(other))
    differing = np.flatnonzero(one[:both] != other[:both])
    return int(differing[0]) if len(differing) else both
