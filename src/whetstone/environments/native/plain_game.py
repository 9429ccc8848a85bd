"""What every game of ours has: all it knows can be written down, and it holds nothing."""

from __future__ import annotations

import pickle
from typing import Any


class PlainGame:
    """A game whose attributes are all there is to know of it."""

    isolation = "object"

    def snapshot(self) -> bytes:
        """Everything it knows."""
        return pickle.dumps(self.__dict__)

    def restore(self, kept: bytes) -> None:
        """Know what was known then."""
        known: dict[str, Any] = pickle.loads(kept)
        self.__dict__.clear()
        self.__dict__.update(known)

    def close(self) -> None:
        """Nothing is held."""
