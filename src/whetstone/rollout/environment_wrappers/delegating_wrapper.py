"""Base class of environment wrappers: delegates to another environment and records the actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whetstone.chat import Message
from whetstone.environments import Environment, Observation, StepResult
from whetstone.rollout.protocol import RewardCallback
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import Task


class EnvironmentProxy:
    """Base class of environment wrappers: forwards all calls to an environment. Subclasses override `step`.

    Args:
        environment: Wrapped environment.
        judge: Function that computes the reward of the actions so far.
    """

    stateless = False
    """Whether the environment has no state; False, because the recorded actions are a state, so that a resumed episode
    replays its actions."""

    def __init__(self, environment: Environment, judge: RewardCallback) -> None:
        self.environment, self.judge = environment, judge
        self.actions: list[Message] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.environment, name)

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Reset the wrapped environment and clear the recorded actions."""
        self.task, self.actions = task, []
        first: Observation = await call_user_function(self.environment.reset, task, seed=seed)
        return first

    async def step(self, action: Message) -> StepResult:
        """Record the action and step the wrapped environment."""
        self.actions.append(action)
        result: StepResult = await call_user_function(self.environment.step, action)
        return result

    async def close(self) -> None:
        """Close the wrapped environment."""
        await call_user_function(self.environment.close)

    async def current_reward(self, actions: Sequence[Message]) -> float:
        """Return the reward of the given actions; 0 if it cannot be computed."""
        return await self.judge(self.task, actions) or 0.0
