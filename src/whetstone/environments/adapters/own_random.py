"""How does a package that draws from Python's one random generator play the same game twice? With a state of its own.

Easy to get wrong: seeding the shared generator makes one episode's luck depend on the others, and ours on theirs. Here
each game has its own state, put in place around each call and taken out behind it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any


class OwnRandom:
    """A state of Python's random generator, in place inside `with`."""

    def __init__(self, seed: int) -> None:
        self._state: Any = random.Random(seed).getstate()

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Draws inside come from here, and those outside are as if there had been none."""
        outside = random.getstate()
        random.setstate(self._state)
        try:
            yield
        finally:
            self._state = random.getstate()
            random.setstate(outside)
