"""Does a world draw from chance that everybody shares? The generators of `random` and of NumPy, moved about.

Easy to get wrong: a world that seeds such a generator and draws from it plays the same game twice when it is alone, and
another one as soon as anybody else draws in between. So it is moved between turns, too.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from whetstone.environments import Environment

RANDOM, NUMPY = "Python's global `random`", "`numpy.random`"
COMBINATIONS = ((RANDOM,), (NUMPY,), (RANDOM, NUMPY))
"""Each alone, and both."""


def states() -> Mapping[str, Any]:
    """Where each generator stands."""
    return {RANDOM: random.getstate(), NUMPY: numpy.random.get_state()}


def put(kept: Mapping[str, Any]) -> None:
    """Back to where they stood."""
    random.setstate(kept[RANDOM])
    numpy.random.set_state(kept[NUMPY])


class Mover:
    """Puts the generators somewhere else, again and again, and sees who else did.

    Args:
        seed: The same places for the same seed.
        names: Those that are moved.
    """

    def __init__(self, seed: int = 0, names: Sequence[str] = COMBINATIONS[-1]) -> None:
        self.place, self.names = 1_000_000 * seed, names
        self.touched: set[str] = set()
        """Those somebody else has moved."""
        self._left: Mapping[str, Any] = {}

    def move(self) -> None:
        """To the next place."""
        self.place += 1
        if RANDOM in self.names:
            random.seed(self.place)
        if NUMPY in self.names:
            numpy.random.seed(self.place)
        self._left = states()

    async def between(self, environment: Environment, turns: int) -> None:
        """Between two turns."""
        now = states()
        self.touched |= {name for name in now if pickle.dumps(now[name]) != pickle.dumps(self._left[name])}
        self.move()
