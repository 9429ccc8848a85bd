"""Base class of environment wrappers: delegates to another environment and records the actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whetstone.chat import Message
from whetstone.environments import Environment, Observation, StepResult
from whetstone.rollout.protocol import Judge
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import Task


class EnvironmentProxy:
    """A wrapper without changes; subclasses override `step`."""

    stateless = False
    """False: it records actions, so an episode that is resumed replays them."""

    def __init__(self, environment: Environment, judge: Judge) -> None:
        self.environment, self.judge = environment, judge
        self.actions: list[Message] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.environment, name)

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Reset the environment."""
        self.task, self.actions = task, []
        first: Observation = await call_user_function(self.environment.reset, task, seed=seed)
        return first

    async def step(self, action: Message) -> StepResult:
        """Record the action and step the environment."""
        self.actions.append(action)
        result: StepResult = await call_user_function(self.environment.step, action)
        return result

    async def close(self) -> None:
        """Close the environment."""
        await call_user_function(self.environment.close)

    async def current_reward(self, actions: Sequence[Message]) -> float:
        """Return the reward of the actions so far; 0 if it cannot be computed."""
        return await self.judge(self.task, actions) or 0.0
