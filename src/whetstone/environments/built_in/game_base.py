"""`PlainGame`: base class of the built-in games, whose complete state is in picklable attributes."""

from __future__ import annotations

import pickle
from typing import Any


class PlainGame:
    """Base class of a game whose attributes are its complete state.

    Snapshots are therefore possible. The game runs in the episode's thread and has no resources.
    """

    isolation = "object"

    def snapshot(self) -> bytes:
        """Return the pickled attributes of the game, from which `restore` continues it."""
        return pickle.dumps(self.__dict__)

    def restore(self, snapshot: bytes) -> None:
        """Replace the attributes of the game by those of a snapshot."""
        known: dict[str, Any] = pickle.loads(snapshot)
        self.__dict__.clear()
        self.__dict__.update(known)

    def close(self) -> None:
        """Do nothing; the game has no resources."""
