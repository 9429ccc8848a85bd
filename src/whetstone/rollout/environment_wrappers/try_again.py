"""Environment wrapper with unary feedback: a wrong answer gets a fixed sentence, and the episode continues.

Note:
    A correct answer ends the episode; it is never confirmed within it. Every turn counts towards the limit, or an agent
    whose actions cannot be parsed would continue for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from whetstone.chat import Message, user
from whetstone.environments import Environment, Observation, StepResult
from whetstone.plugins import OptionError
from whetstone.rollout.environment_wrappers.delegating_wrapper import EnvironmentProxy
from whetstone.rollout.protocol import RewardCallback


@dataclass(frozen=True, slots=True, kw_only=True)
class TryAgain:
    """Answers a wrong answer with a fixed sentence, up to `attempts` answers in total (UFO).

    With one attempt it has no effect. Use it with the reward `unary_feedback`.

    Source: UFO 2025, arXiv:2507.14295, and its code.
    """

    attempts: int = 5
    """Maximum number of answers per episode."""
    sentence: str = "That is not correct. Think again and answer once more."
    """User message after a wrong answer."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise OptionError("attempts", f"must be at least 1, got {self.attempts}")

    @property
    def at_evaluation(self) -> bool:
        """Return True: training and evaluation have the same environment."""
        return True

    def __call__(self, environment: Environment, judge: RewardCallback, /) -> Environment:
        """Wrap the environment of an episode; see `EnvironmentWrapper.__call__`."""
        return _Asking(environment, judge, self)


class _Asking(EnvironmentProxy):
    def __init__(self, environment: Environment, judge: RewardCallback, how: TryAgain) -> None:
        super().__init__(environment, judge)
        self.how = how
        self.answers = 0

    async def step(self, action: Message) -> StepResult:
        result = await super().step(action)
        if result.terminated:
            self.answers += 1
            if self.answers < self.how.attempts and await self.current_reward(self.actions) <= 0:
                observation = Observation((*result.observation.messages, user(self.how.sentence)))
                return replace(result, observation=observation, terminated=False, reason=None)
        return result
