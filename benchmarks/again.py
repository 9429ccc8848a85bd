"""A letter behind a door that is more often one than the others: a world in which a second answer can be another one.

Which letter is likely can be learned, which one it is cannot be known. So the best first answer is the likely one, and
the best answer behind "wrong, try again" is a different one.
"""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.chat import Message, ToolSpec, assistant
from whetstone.environments import Environment, Observation, StepResult
from whetstone.rewards import unary_feedback
from whetstone.rewards.protocol import needs_private
from whetstone.rollout.environment_wrappers.try_again import TryAgain
from whetstone.rollout.protocol import Judge
from whetstone.seeding import derive_random
from whetstone.trajectory import Score, Task, Trajectory

LETTERS = "QRST"
DOORS = ("oak", "ash", "elm", "fir", "yew", "box", "bay", "fig", "gum", "may")
LIKELY = 0.55
"""How often the letter behind a door is that door's likely one; the others share the rest."""


class Doors:
    """Doors with letters behind them; the expert knows each."""

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed

    def task(self, index: int) -> Task:
        """Training door `index`."""
        return self._task("training", self.seed, index)

    def held_out(self, count: int) -> list[Task]:
        """The same whatever the seed."""
        return [self._task("held out", 0, index) for index in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """What is behind it."""
        return assistant(task.private["answer"])

    def _task(self, split: str, seed: int, index: int) -> Task:
        draw = derive_random("door", split, seed, index)
        door = draw.choice(DOORS)
        likely = derive_random("behind", door).choice(LETTERS)
        letter = likely if draw.random() < LIKELY else draw.choice([each for each in LETTERS if each != likely])
        return Task(f"door/{split}/{seed}/{index}", f"{door}?", {"answer": letter}, {"kind": door})


class TriedAgainAtTheEnd:
    """Held-out tasks are answered up to `attempts` times, training tasks once: for who is to be compared with one that
    was trained to try again."""

    at_evaluation = True

    def __init__(self, *, attempts: int = 5) -> None:
        self.again = TryAgain(attempts=attempts)

    def __call__(self, environment: Environment, judge: Judge, /) -> Environment:
        """See `EnvironmentWrapper`."""
        return _Either(environment, self.again(environment, judge))


class _Either:
    def __init__(self, once: Environment, again: Environment) -> None:
        self.once, self.again, self.now = once, again, once

    async def reset(self, task: Task, *, seed: int) -> Observation:
        self.now = self.again if "/held out/" in task.id else self.once
        return await self.now.reset(task, seed=seed)

    async def step(self, action: Message) -> StepResult:
        return await self.now.step(action)

    async def close(self) -> None:
        await self.again.close()


@needs_private("answer")
async def first_and_any(trajectory: Trajectory, task: Task) -> Score:
    """As `unary_feedback`, and in parts whether the first answer was right."""
    score = await unary_feedback(trajectory, task)
    first = float(bool(score.success) and score.parts["attempts"] == 1)
    return Score(score.value, {**score.parts, "first": first}, success=score.success)


@needs_private("answer")
async def any_attempt(trajectory: Trajectory, task: Task) -> Score:
    """1 where any of the answers was right, however late: no discount, no price on saying the same again."""
    score = await first_and_any(trajectory, task)
    return Score(float(bool(score.success)), score.parts, success=score.success)
