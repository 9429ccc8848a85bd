"""Tasks that require a different second answer: each door has a letter that is more likely than the others.

The likely letter can be learned, the actual letter cannot be known. The best first answer is the likely letter, and
the best answer after "wrong, try again" is another letter.
"""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.chat import Message, ToolSpec, assistant
from whetstone.environments import Environment, Observation, StepResult
from whetstone.rewards import unary_feedback
from whetstone.rewards.protocol import needs_private
from whetstone.rollout.environment_wrappers.try_again import TryAgain
from whetstone.rollout.protocol import RewardCallback
from whetstone.seeding import derive_random
from whetstone.trajectory import Score, Task, Trajectory

LETTERS = "QRST"
DOORS = ("oak", "ash", "elm", "fir", "yew", "box", "bay", "fig", "gum", "may")
LIKELY = 0.55
"""Probability of the likely letter of a door; the other letters share the rest equally."""


class Doors:
    """Task source of doors and their letters; demonstrations name the actual letter."""

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed

    def task(self, index: int) -> Task:
        """Return training door `index`."""
        return self._task("training", self.seed, index)

    def held_out(self, count: int) -> list[Task]:
        """Return held-out doors, which do not depend on the seed."""
        return [self._task("held out", 0, index) for index in range(count)]

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the letter of the door."""
        return assistant(task.private["answer"])

    def _task(self, split: str, seed: int, index: int) -> Task:
        draw = derive_random("door", split, seed, index)
        door = draw.choice(DOORS)
        likely = derive_random("behind", door).choice(LETTERS)
        letter = likely if draw.random() < LIKELY else draw.choice([each for each in LETTERS if each != likely])
        return Task(f"door/{split}/{seed}/{index}", f"{door}?", {"answer": letter}, {"kind": door})


class TriedAgainAtTheEnd:
    """Environment wrapper that allows `attempts` answers to a held-out task and one answer to a training task.

    It is the baseline of a policy that was trained with several attempts.
    """

    at_evaluation = True

    def __init__(self, *, attempts: int = 5) -> None:
        self.again = TryAgain(attempts=attempts)

    def __call__(self, environment: Environment, judge: RewardCallback, /) -> Environment:
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
    """Score as `unary_feedback` does, with a part for the correctness of the first answer."""
    score = await unary_feedback(trajectory, task)
    first = float(bool(score.success) and score.parts["attempts"] == 1)
    return Score(score.value, {**score.parts, "first": first}, success=score.success)


@needs_private("answer")
async def any_attempt(trajectory: Trajectory, task: Task) -> Score:
    """Return 1 if any answer was right, without a discount for late answers or a penalty for repeated ones."""
    score = await first_and_any(trajectory, task)
    return Score(float(bool(score.success)), score.parts, success=score.success)
