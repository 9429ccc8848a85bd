"""Generated tasks by difficulty level, with a permanent held-out set.

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

from whetstone.plugins import OptionError
from whetstone.seeding import derive_random
from whetstone.trajectory import Task

_TRIES = 400


class Generated(ABC):
    """A source of generated tasks, one in `held_out_share` of them held out.

    A subclass generates the tasks, and can demonstrate their solution with `demonstrate` (see `Expert`).

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.

    Raises:
        OptionError: If there is no such level.
    """

    name: ClassVar[str]
    """Name of the domain, and prefix of ids."""
    most: ClassVar[int] = 3
    """Number of levels; the first is 1."""
    held_out_share: ClassVar[int] = 10
    """One task in this many is held out."""

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
        """Generate a task of a level; its id is replaced.

        `private` must be serializable as JSON.
        """

    def what(self, task: Task) -> Any:
        """Return the identity of a task as JSON values.

        Equal tasks are on the same side of the split.
        """
        return [task.prompt, task.private]

    def task(self, index: int) -> Task:
        """Return training task `index`."""
        draw = derive_random(self.seed, self.name, "training", index)
        return self._sample_task(draw, draw.choice(self.levels), held_out=False)

    def held_out(self, count: int) -> list[Task]:
        """Return distinct held-out tasks, the same for every seed, from all levels in turn."""
        chosen: dict[str, Task] = {}
        for attempt in range(20 * count):
            if len(chosen) == count:
                break
            draw = derive_random(self.name, "held out", attempt)
            task = self._sample_task(draw, self.levels[attempt % len(self.levels)], held_out=True)
            chosen.setdefault(task.id, task)
        return list(chosen.values())

    def _sample_task(self, draw: Random, level: int, *, held_out: bool) -> Task:
        for _ in range(_TRIES):
            task = self.make(draw, level)
            written = json.dumps(self.what(task), sort_keys=True, ensure_ascii=False)
            digest = hashlib.blake2b(written.encode(), digest_size=8).hexdigest()
            if (int(digest, 16) % self.held_out_share == 0) == held_out:
                tags = {"domain": self.name, "difficulty": str(level), **task.tags}
                return replace(task, id=f"{self.name}/{level}/{digest}", tags=tags)
        side = "held out" if held_out else "trained"
        raise OptionError("levels", f"{self.name}: none of {_TRIES} generated tasks of level {level} is {side}")
