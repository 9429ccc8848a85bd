"""A user who only ever says: that is wrong, try again.

Easy to get wrong: a right answer is never confirmed in a conversation that goes on; it ends it. And every turn counts
towards the limit, or an agent that cannot be read would go on for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from whetstone.chat import Message, user
from whetstone.environments import Environment, Observation, StepResult
from whetstone.plugins import OptionError
from whetstone.rollout.environment_wrappers.answering import Answering
from whetstone.rollout.protocol import Judge


@dataclass(frozen=True, slots=True, kw_only=True)
class TryAgain:
    """An answer that is wrong is answered by one sentence, up to `attempts` answers in all (UFO).

    With one attempt it is the environment itself. The reward `unary_feedback` goes with it.

    Source: UFO 2025, arXiv:2507.14295, and its code.
    """

    attempts: int = 5
    """Answers in an episode."""
    sentence: str = "That is not correct. Think again and answer once more."
    """What a wrong one is told."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise OptionError("attempts", f"one or more, got {self.attempts}")

    @property
    def at_evaluation(self) -> bool:
        """The world an agent lives in is the same when it is evaluated."""
        return True

    def __call__(self, environment: Environment, judge: Judge, /) -> Environment:
        """See `EnvironmentWrapper`."""
        return _Asking(environment, judge, self)


class _Asking(Answering):
    def __init__(self, environment: Environment, judge: Judge, how: TryAgain) -> None:
        super().__init__(environment, judge)
        self.how = how
        self.answers = 0

    async def step(self, action: Message) -> StepResult:
        result = await super().step(action)
        if result.terminated:
            self.answers += 1
            if self.answers < self.how.attempts and await self.worth(self.actions) <= 0:
                said = Observation((*result.observation.messages, user(self.how.sentence)))
                return replace(result, observation=said, terminated=False, reason=None)
        return result
