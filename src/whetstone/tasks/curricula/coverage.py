"""Curriculum that prefers tasks whose states occur rarely in offline and sampled episodes.

Note:
    A task without any episode has unknown states, and therefore the highest need.
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
from whetstone.tasks.curricula.task_pool import Pool
from whetstone.tasks.protocol import Source
from whetstone.trajectory import Group, Trajectory

if TYPE_CHECKING:
    from whetstone.rollout.protocol import StepOutcome


def visit_need(visits: Iterable[int]) -> float:
    """Compute the need of a task for episodes: the mean of 1 / √n over its states.

    n is the number of visits of a state. A task without a state has need 1.

    Args:
        visits: Number of visits of each state of the task, 1 or more.

    Source: count bonuses as in Wagenmaker and Pacchiano 2023, arXiv:2211.04974, which samples online only if offline
    data leave a state uncovered; the mean over a task's states is an addition.
    """
    counts = list(visits)
    return fmean(1 / math.sqrt(count) for count in counts) if counts else 1.0


class Coverage:
    """Curriculum over a pool of tasks that prefers those with rarely visited states.

    Offline episodes are those of `reinforcement.offline_mixture`; with its `fraction: 0` they are read only for this
    curriculum. A state is identified by the context of a turn, as in `gigpo`. This is an analogy: the original
    algorithm plans which states to visit; here only tasks can be selected, so the states of their episodes represent
    them.

    Args:
        size: Number of tasks in the pool, the source's first.
        stored_groups: Returns the offline episodes; filled in from the recipe.
        strength: Sampling weights are the needs to this power; 0 samples uniformly.
        seed: Seed of the pool; filled in from the recipe.

    Source: Wagenmaker and Pacchiano 2023, arXiv:2211.04974.
    """

    def __init__(
        self, *, size: int, stored_groups: Callable[[], Sequence[Group]] | None, strength: float = 1.0, seed: int = 0
    ) -> None:
        if stored_groups is None:
            raise OptionError("name", "requires stored episodes: set reinforcement.offline_mixture")
        if strength < 0:
            raise OptionError("strength", f"must be 0 or more, got {strength:g}")
        self.pool, self.strength, self._read = Pool(size=size, seed=seed), strength, stored_groups
        self.visits: dict[str, Counter[str]] = {}
        """Number of visits by task id and state, in offline and sampled episodes."""
        self._tasks: list[str] = []
        self._begun = False

    def check(self, source: Source, first: int) -> None:
        """Check that the source has enough tasks for the pool; see `Pool`."""
        self.pool.check(source, first)

    def choose(self, source: Source, first: int, number: int, step: int, draw: Random, /) -> int:
        """Return the index of a task of the pool, sampled by need; see `Curriculum`."""
        if not self._tasks:
            self._tasks = [source.task(first + k).id for k in range(self.pool.size)]
        if not self._begun:
            self._begin()
        weights = [visit_need(self.visits.get(task, Counter()).values()) ** self.strength for task in self._tasks]
        (place,) = draw.choices(range(len(weights)), weights)
        return first + place

    def observe(self, outcome: StepOutcome, /) -> None:
        """Count the visited states of the groups of a step; see `Stateful`."""
        for group in outcome.groups:
            self._add(group.task.id, group.trajectories)

    def state(self) -> dict[str, Any]:
        """Return the numbers of visits for a checkpoint; see `Stateful`."""
        return {"begun": self._begun, "visits": {task: dict(counts) for task, counts in self.visits.items()}}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Restore the numbers of visits of a checkpoint; see `Stateful`."""
        self._begun = state["begun"]
        self.visits = {task: Counter(counts) for task, counts in state["visits"].items()}

    def metrics(self) -> dict[str, float]:
        """Return the mean `need` of the pool, and `seen`, the fraction of visited tasks."""
        needs = [visit_need(self.visits.get(task, Counter()).values()) for task in self._tasks]
        seen = [float(task in self.visits) for task in self._tasks]
        return {"need": fmean(needs), "seen": fmean(seen)} if needs else {}

    def _begin(self) -> None:
        """Count the visited states of the offline episodes, once."""
        self._begun = True
        for group in self._read():
            self._add(group.task.id, group.trajectories)

    def _add(self, task: str, trajectories: Sequence[Trajectory]) -> None:
        """Add the visited states of a task's episodes, if the task is in the pool."""
        if self._tasks and task not in self._tasks:
            return
        counts = self.visits.setdefault(task, Counter())
        for trajectory in trajectories:
            counts.update(state_digests(trajectory))


def state_digests(trajectory: Trajectory) -> list[str]:
    """Return a digest of the observation before each turn, which identifies a state."""
    seen = [trajectory.opening, *(turn.observation for turn in trajectory.turns[:-1])]
    texts = ("\x1f".join(message.text for message in messages) for messages in seen[: len(trajectory.turns)])
    return [hashlib.blake2b(text.encode(), digest_size=8).hexdigest() for text in texts]
