"""Where are fresh episodes still needed? Where stored ones, and fresh ones so far, have seen little of a task's states.

Easy to get wrong: a task nobody stored is not one without need. Its states are not known, so its need is the largest.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Any

from whetstone.plugins import OptionError
from whetstone.tasks.curricula.pool import Pool
from whetstone.tasks.protocol import Source
from whetstone.trajectory import Group, Trajectory

if TYPE_CHECKING:
    from whetstone.rollout.protocol import StepOutcome


def need(visits: Iterable[int]) -> float:
    """How much a task still needs episodes: the mean over its states of 1 / √n, n visits of each; 1 without a state.

    Source: bonuses of counts as in Wagenmaker and Pacchiano 2023, arXiv:2211.04974, which samples online only where
    stored data leave a state uncovered; the mean over a task's states is ours.
    """
    counts = list(visits)
    return fmean(1 / math.sqrt(count) for count in counts) if counts else 1.0


class Coverage:
    """Tasks of a pool, drawn by how little of them stored and fresh episodes have seen.

    Stored episodes are those of `reinforcement.offline_mixture`; with its `fraction: 0` they are read only for this
    curriculum. A state is identified by the context of a turn, as in `gigpo`. By analogy: there an algorithm plans
    which states to visit; here a task is all that can be asked for, so the states behind it stand for it.

    Args:
        size: Tasks in the pool, the source's first.
        strength: Draws are in proportion to need to this power; 0 draws evenly.

    Source: Wagenmaker and Pacchiano 2023, arXiv:2211.04974.
    """

    def __init__(
        self, *, size: int, stored_groups: Callable[[], Sequence[Group]] | None, strength: float = 1.0, seed: int = 0
    ) -> None:
        if stored_groups is None:
            raise OptionError("name", "requires stored episodes: set reinforcement.offline_mixture")
        if strength < 0:
            raise OptionError("strength", f"0 or more, got {strength:g}")
        self.pool, self.strength, self._read = Pool(size=size, seed=seed), strength, stored_groups
        self.visits: dict[str, Counter[str]] = {}
        """By task, of each state; stored and fresh."""
        self._tasks: list[str] = []
        self._begun = False

    def check(self, source: Source, first: int) -> None:
        """See `Pool`."""
        self.pool.check(source, first)

    def choose(self, source: Source, first: int, number: int, step: int, draw: Random, /) -> int:
        """See `Curriculum`."""
        if not self._tasks:
            self._tasks = [source.task(first + k).id for k in range(self.pool.size)]
        if not self._begun:
            self._begin()
        weights = [need(self.visits.get(task, Counter()).values()) ** self.strength for task in self._tasks]
        (place,) = draw.choices(range(len(weights)), weights)
        return first + place

    def observe(self, heard: StepOutcome, /) -> None:
        """See `Stateful`."""
        for group in heard.groups:
            self._add(group.task.id, group.trajectories)

    def state(self) -> dict[str, Any]:
        """See `Stateful`."""
        return {"begun": self._begun, "visits": {task: dict(counts) for task, counts in self.visits.items()}}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """See `Stateful`."""
        self._begun = state["begun"]
        self.visits = {task: Counter(counts) for task, counts in state["visits"].items()}

    def metrics(self) -> dict[str, float]:
        """How much the tasks of the pool need episodes, and the share of which something was seen."""
        needs = [need(self.visits.get(task, Counter()).values()) for task in self._tasks]
        seen = [float(task in self.visits) for task in self._tasks]
        return {"need": fmean(needs), "seen": fmean(seen)} if needs else {}

    def _begin(self) -> None:
        self._begun = True
        for group in self._read():
            self._add(group.task.id, group.trajectories)

    def _add(self, task: str, trajectories: Sequence[Trajectory]) -> None:
        if self._tasks and task not in self._tasks:
            return
        counts = self.visits.setdefault(task, Counter())
        for trajectory in trajectories:
            counts.update(states_of(trajectory))


def states_of(trajectory: Trajectory) -> list[str]:
    """What each turn began from, the opening or what came back last, in a few letters each."""
    seen = [trajectory.opening, *(turn.observation for turn in trajectory.turns[:-1])]
    texts = ("\x1f".join(message.text for message in messages) for messages in seen[: len(trajectory.turns)])
    return [hashlib.blake2b(text.encode(), digest_size=8).hexdigest() for text in texts]
