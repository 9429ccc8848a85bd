"""Base of the built-in games: the complete state is in picklable attributes, and there are no resources."""

from __future__ import annotations

import pickle
from typing import Any


class PlainGame:
    """A game whose attributes are its complete state."""

    isolation = "object"

    def snapshot(self) -> bytes:
        """Return the pickled state."""
        return pickle.dumps(self.__dict__)

    def restore(self, snapshot: bytes) -> None:
        """Replace the state by a snapshot."""
        known: dict[str, Any] = pickle.loads(snapshot)
        self.__dict__.clear()
        self.__dict__.update(known)

    def close(self) -> None:
        """Do nothing; there are no resources."""
