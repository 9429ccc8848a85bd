"""Isolated random state for packages that use Python's global random generator, so that games are reproducible.

Note:
    Seeding the global generator would make episodes depend on each other, and this project on the package. Each game
    has a separate state instead, installed around each call and removed afterwards.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any


class IsolatedRandom:
    """State of Python's global random generator for one game.

    Args:
        seed: Seed of the state.
    """

    def __init__(self, seed: int) -> None:
        self._state: Any = random.Random(seed).getstate()

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Install the state in the global generator within the context.

        Random numbers outside the context are not affected. The next context continues the sequence.
        """
        outside = random.getstate()
        random.setstate(self._state)
        try:
            yield
        finally:
            self._state = random.getstate()
            random.setstate(outside)
