"""Check of global random generators: perturbs those of `random` and NumPy to find environments that use them.

Note: An environment that seeds a global generator and uses it is reproducible when it runs by itself, but not if other
code uses the generator in between. So the generators are also perturbed between turns.
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
"""Each generator by itself, and both."""


def rng_states() -> Mapping[str, Any]:
    """Return the state of each generator."""
    return {RANDOM: random.getstate(), NUMPY: numpy.random.get_state()}


def restore_rng(saved: Mapping[str, Any]) -> None:
    """Restore the states of the generators."""
    random.setstate(saved[RANDOM])
    numpy.random.set_state(saved[NUMPY])


class RngPerturber:
    """Changes the states of the generators repeatedly, and detects other changes.

    Args:
        seed: Seed of the states.
        names: Names of the generators to change.
    """

    def __init__(self, seed: int = 0, names: Sequence[str] = COMBINATIONS[-1]) -> None:
        self.place, self.names = 1_000_000 * seed, names
        self.touched: set[str] = set()
        """Names of the generators that other code has changed."""
        self._left: Mapping[str, Any] = {}

    def move(self) -> None:
        """Set the generators to the next state."""
        self.place += 1
        if RANDOM in self.names:
            random.seed(self.place)
        if NUMPY in self.names:
            numpy.random.seed(self.place)
        self._left = rng_states()

    async def between(self, environment: Environment, turns: int) -> None:
        """Detect changes and set the next state, between two turns."""
        now = rng_states()
        self.touched |= {name for name in now if pickle.dumps(now[name]) != pickle.dumps(self._left[name])}
        self.move()
