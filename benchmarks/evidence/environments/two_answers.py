"""A choice between two right answers with equal rewards, except for a small nudge."""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.chat import Message, ToolSpec, assistant
from whetstone.seeding import derive_random
from whetstone.trajectory import Score, Task, Trajectory

ANSWERS = ("left", "right")
FORKS = ("road", "river", "branch", "stair", "track", "valley", "street", "tunnel", "path", "canal")


class Forks:
    """Task source of forks; demonstrations take both ways with equal probability."""

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed

    def task(self, index: int) -> Task:
        """Return training fork `index`."""
        return self._task("training", self.seed, index)

    def held_out(self, count: int) -> list[Task]:
        """Return held-out forks, which do not depend on the seed."""
        return [self._task("held out", 0, index) for index in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return one of the two answers at random."""
        return assistant(derive_random("went", task.id).choice(ANSWERS))

    def _task(self, split: str, seed: int, index: int) -> Task:
        fork = derive_random("fork", split, seed, index).choice(FORKS)
        return Task(f"fork/{split}/{seed}/{index}", f"{fork} left or right", {}, {"kind": fork})


async def either(trajectory: Trajectory, task: Task, *, nudge: float = 0.0) -> Score:
    """Return 1 for either answer, 0 otherwise, plus `nudge` for left, or for right if `nudge` is negative."""
    answer_given = trajectory.final_text.strip()
    left, right = (float(answer_given == answer) for answer in ANSWERS)
    right_or_left = left + right
    return Score(
        right_or_left + max(nudge, 0) * left - min(nudge, 0) * right, {"left": left}, success=bool(right_or_left)
    )
