"""Tasks made by chance, level by level, of which some are held out for ever.

Easy to get wrong: a held-out task must not turn up in training. Which side a task falls on is decided by what it is,
not by a draw, so it holds for every seed, every level and any number of tasks; and two tasks that are the same have one
id.
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
    """A source of generated tasks, one in `held_out_share` of them held out; a subclass makes them, and shows how they
    are done with `demonstrate` where somebody knows (see `Expert`).

    Args:
        seed: Another seed, other training tasks; which tasks are held out does not depend on it.
        levels: Difficulties that are drawn, each as often as the other; null: all there are.

    Raises:
        OptionError: There is no such level.
    """

    name: ClassVar[str]
    """The domain, and what ids begin with."""
    most: ClassVar[int] = 3
    """Levels there are, from 1."""
    held_out_share: ClassVar[int] = 10
    """One in so many is held out."""

    def __init__(self, *, seed: int = 0, levels: list[int] | None = None) -> None:
        self.seed = seed
        self.levels = list(range(1, self.most + 1)) if levels is None else levels
        for k, level in enumerate(self.levels):
            if not 1 <= level <= self.most:
                raise OptionError(f"levels.{k}", f"{self.name} has levels 1 to {self.most}, got {level}")
        if not self.levels:
            raise OptionError("levels", "no level, so there is nothing to draw")

    @abstractmethod
    def make(self, draw: Random, level: int) -> Task:
        """A task of a level, whose id is of no account. `private` must be what JSON can hold."""

    def what(self, task: Task) -> Any:
        """What makes a task the task it is, as JSON can hold it; two that have it alike are never on both sides."""
        return [task.prompt, task.private]

    def task(self, index: int) -> Task:
        """Training task `index`."""
        draw = derive_random(self.seed, self.name, "training", index)
        return self._drawn(draw, draw.choice(self.levels), held_out=False)

    def held_out(self, count: int) -> list[Task]:
        """The same tasks whatever the seed, the levels in turn; each once."""
        chosen: dict[str, Task] = {}
        for attempt in range(20 * count):
            if len(chosen) == count:
                break
            draw = derive_random(self.name, "held out", attempt)
            task = self._drawn(draw, self.levels[attempt % len(self.levels)], held_out=True)
            chosen.setdefault(task.id, task)
        return list(chosen.values())

    def _drawn(self, draw: Random, level: int, *, held_out: bool) -> Task:
        for _ in range(_TRIES):
            task = self.make(draw, level)
            written = json.dumps(self.what(task), sort_keys=True, ensure_ascii=False)
            digest = hashlib.blake2b(written.encode(), digest_size=8).hexdigest()
            if (int(digest, 16) % self.held_out_share == 0) == held_out:
                tags = {"domain": self.name, "difficulty": str(level), **task.tags}
                return replace(task, id=f"{self.name}/{level}/{digest}", tags=tags)
        side = "held out" if held_out else "trained"
        raise OptionError("levels", f"{self.name}: none of {_TRIES} tasks of level {level} is to be {side}")
