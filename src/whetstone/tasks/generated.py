"""`Generated`: base class of sources that generate tasks by difficulty level, with a permanent held-out set.

Note:
    A held-out task must not occur in training. The content of a task determines whether it is held out, independent of
    the seed, the level and the number of tasks. Equal tasks have the same id.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.seeding import derive_random
from whetstone.trajectory import Task

_TRIES = 400
"""Maximum number of tasks that are generated for one task of the requested side of the split."""


class Generated(ABC):
    """Base class of a source that generates its tasks.

    A subclass implements `make`, and can demonstrate solutions with `demonstrate` (see `Expert`). One task in
    `held_out_share` is held out.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.

    Raises:
        OptionError: If there is no such level.
    """

    name: ClassVar[str]
    """Name of the domain, and prefix of task ids."""
    most: ClassVar[int] = 3
    """Number of levels; the first level is 1."""
    held_out_share: ClassVar[int] = 10
    """Number of tasks of which one is held out."""

    def __init__(self, *, seed: int = 0, levels: list[int] | None = None) -> None:
        self.seed = seed
        self.levels = list(range(1, self.most + 1)) if levels is None else levels
        for k, level in enumerate(self.levels):
            if not 1 <= level <= self.most:
                raise OptionError(f"levels.{k}", f"{self.name} has levels 1 to {self.most}, got {level}")
        if not self.levels:
            raise OptionError("levels", "the list is empty; set one level or more")

    @abstractmethod
    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level, from 1 to `most`.

        The random generator of the argument is the only source of randomness. The id of the returned task is replaced.
        `private` must be serializable as JSON.
        """

    def what(self, task: Task) -> Any:
        """Return the identity of a task as JSON values.

        By default, the identity is the prompt and the private data without milestones. Tasks with equal identities have
        the same id and are on the same side of the split.
        """
        return [task.prompt, _without_milestones(task).private]

    def task(self, index: int) -> Task:
        """Return training task `index`, whose level is sampled uniformly from `levels`."""
        draw = derive_random(self.seed, self.name, "training", index)
        return self._sample_task(draw, draw.choice(self.levels), held_out=False)

    def held_out(self, count: int) -> list[Task]:
        """Return up to `count` distinct held-out tasks, from all levels in turn.

        The tasks are the same for every seed. They have no milestones: evaluations do not pay for progress.
        """
        chosen: dict[str, Task] = {}
        for attempt in range(20 * count):
            if len(chosen) == count:
                break
            draw = derive_random(self.name, "held out", attempt)
            task = self._sample_task(draw, self.levels[attempt % len(self.levels)], held_out=True)
            chosen.setdefault(task.id, _without_milestones(task))
        return list(chosen.values())

    def _sample_task(self, draw: Random, level: int, *, held_out: bool) -> Task:
        """Generate tasks of a level until a task is on the requested side of the split.

        Raises:
            OptionError: If none of `_TRIES` tasks is.
        """
        for _ in range(_TRIES):
            task = self.make(draw, level)
            written = json.dumps(self.what(task), sort_keys=True, ensure_ascii=False)
            digest = hashlib.blake2b(written.encode(), digest_size=8).hexdigest()
            if (int(digest, 16) % self.held_out_share == 0) == held_out:
                tags = {"domain": self.name, "difficulty": str(level), **task.tags}
                return replace(task, id=f"{self.name}/{level}/{digest}", tags=tags)
        side = "held out" if held_out else "trained"
        raise OptionError(
            "levels", f"{self.name}: none of {_TRIES} generated tasks of level {level} is {side}; set other levels"
        )


def check_environment_id(task: Task, id: str) -> None:
    """Check that a task was made for the environment that plays it.

    Args:
        task: Task; one without an `id` in its private data fits every environment.
        id: Id of the environment in its package.

    Raises:
        TaskError: The task belongs to another environment.
    """
    if task.private.get("id", id) != id:
        raise TaskError(
            f"task {task.id}: the task belongs to {task.private['id']}, not to {id}; set the same id for tasks and "
            "environment"
        )


class EnvironmentSeeds(Generated):
    """Base class of a source whose tasks are seeds of one environment of another package.

    Args:
        id: Name of the environment in its package.
        seed: Determines the training tasks; the held-out tasks do not depend on it.
    """

    most = 1

    def __init__(self, *, id: str, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.id = id

    def make(self, draw: Random, level: int) -> Task:
        """Generate a task with a random seed; see `Generated`."""
        return Task("", "", {"id": self.id, "seed": draw.randrange(2**31)}, {"kind": self.id})


def _without_milestones(task: Task) -> Task:
    return replace(task, private={key: value for key, value in task.private.items() if key != "milestones"})
