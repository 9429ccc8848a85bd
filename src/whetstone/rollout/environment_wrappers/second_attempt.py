"""Environment wrapper for self-correction: after the first answer, the policy is asked to correct errors in it.

Note:
    The instruction is the same for a correct and a wrong answer, or it would reveal the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from whetstone.chat import Message, user
from whetstone.environments import Environment, Observation, StepResult
from whetstone.rollout.environment_wrappers.delegating_wrapper import EnvironmentProxy
from whetstone.rollout.protocol import Judge


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondAttempt:
    """The first answer is followed by a fixed instruction, the second ends the episode (SCoRe).

    The reward `attempts` scores each; the reward shaping `self_correction` adds the improvement of the second.

    Source: SCoRe 2024, arXiv:2409.12917
    """

    sentence: str = "There may be an error in the answer above. Correct it where there is one, and answer once more."
    """Instruction after the first answer."""

    @property
    def at_evaluation(self) -> bool:
        """Return True: the second attempt is the evaluated one."""
        return True

    def __call__(self, environment: Environment, judge: Judge, /) -> Environment:
        """See `EnvironmentWrapper`."""
        return _Twice(environment, judge, self.sentence)


class _Twice(EnvironmentProxy):
    def __init__(self, environment: Environment, judge: Judge, sentence: str) -> None:
        super().__init__(environment, judge)
        self.sentence, self.asked = sentence, False

    async def step(self, action: Message) -> StepResult:
        result = await super().step(action)
        if not result.terminated or self.asked:
            return result
        self.asked = True
        observation = Observation((*result.observation.messages, user(self.sentence)))
        return replace(result, observation=observation, terminated=False, reason=None)
