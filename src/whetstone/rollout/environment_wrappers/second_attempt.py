"""Whatever was answered: there may be an error in it, once more.

Easy to get wrong: the sentence is the same whether the answer was right or wrong, or it would tell which.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from whetstone.chat import Message, user
from whetstone.environments import Environment, Observation, StepResult
from whetstone.rollout.environment_wrappers.answering import Answering
from whetstone.rollout.protocol import Judge


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondAttempt:
    """A first answer is answered by a fixed instruction, the second ends the episode (SCoRe).

    The reward `attempts` scores each; the reward shaping `self_correction` adds the improvement of the second.

    Source: SCoRe 2024, arXiv:2409.12917
    """

    sentence: str = "There may be an error in the answer above. Correct it where there is one, and answer once more."
    """What the first answer is told."""

    @property
    def at_evaluation(self) -> bool:
        """The second attempt is what is to get better."""
        return True

    def __call__(self, environment: Environment, judge: Judge, /) -> Environment:
        """See `EnvironmentWrapper`."""
        return _Twice(environment, judge, self.sentence)


class _Twice(Answering):
    def __init__(self, environment: Environment, judge: Judge, sentence: str) -> None:
        super().__init__(environment, judge)
        self.sentence, self.asked = sentence, False

    async def step(self, action: Message) -> StepResult:
        result = await super().step(action)
        if not result.terminated or self.asked:
            return result
        self.asked = True
        said = Observation((*result.observation.messages, user(self.sentence)))
        return replace(result, observation=said, terminated=False, reason=None)
