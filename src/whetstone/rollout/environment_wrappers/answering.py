"""An environment around another: it has all the other has, and hears what is said in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whetstone.chat import Message
from whetstone.environments import Environment, Observation, StepResult
from whetstone.rollout.protocol import Judge
from whetstone.tools.threads import call_user_function
from whetstone.trajectory import Task


class Answering:
    """The environment itself; partners differ from it in `step`."""

    stateless = False
    """It counts what was said, so an episode that is gone on with is led through its actions."""

    def __init__(self, environment: Environment, judge: Judge) -> None:
        self.environment, self.judge = environment, judge
        self.actions: list[Message] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.environment, name)

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Begin anew."""
        self.task, self.actions = task, []
        first: Observation = await call_user_function(self.environment.reset, task, seed=seed)
        return first

    async def step(self, action: Message) -> StepResult:
        """What the environment says."""
        self.actions.append(action)
        result: StepResult = await call_user_function(self.environment.step, action)
        return result

    async def close(self) -> None:
        """Let go."""
        await call_user_function(self.environment.close)

    async def worth(self, actions: Sequence[Message]) -> float:
        """What the reward says of an answer; 0 where it cannot tell."""
        return await self.judge(self.task, actions) or 0.0
