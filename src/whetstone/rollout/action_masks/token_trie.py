"""Constraint of a generation to given token sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class TokenTrie:
    """Constraint whose generations are exactly the given sequences (`inference.protocol.Constraint`).

    The probability of a token is that of the model divided by the probability of all tokens with which one of the
    sequences continues, so that every generation is one of them.

    Args:
        sequences: Token sequences, each with the stop token that ends it. None is a prefix of another.
    """

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._root: dict[int, Any] = {}
        self._size = 1 + max(token for sequence in sequences for token in sequence)
        for sequence in sequences:
            node = self._root
            for token in sequence:
                node = node.setdefault(token, {})

    def allowed(self, sampled: Sequence[int]) -> np.ndarray:
        """Return whether each token continues one of the sequences; see `Constraint.allowed`."""
        node = self._root
        for token in sampled:
            node = node.get(token, {})
        mask = np.zeros(self._size, dtype=bool)
        mask[list(node)] = True
        return mask
