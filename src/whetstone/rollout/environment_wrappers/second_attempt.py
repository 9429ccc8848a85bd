"""Environment wrapper for self-correction: after the first answer, an instruction asks the policy to correct errors.

Note:
    The instruction is the same for a correct and a wrong answer, or it would reveal the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from whetstone.chat import Message, user
from whetstone.environments import Environment, Observation, StepResult
from whetstone.rollout.environment_wrappers.delegating_wrapper import EnvironmentProxy
from whetstone.rollout.protocol import RewardCallback


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondAttempt:
    """Requests another answer: the first is followed by a fixed instruction, the second ends the episode (SCoRe).

    The reward `attempts` scores each answer; the reward shaping `self_correction` adds the improvement of the second.

    Source: SCoRe 2024, arXiv:2409.12917
    """

    sentence: str = "There may be an error in the answer above. Correct it where there is one, and answer once more."
    """Instruction after the first answer."""

    @property
    def at_evaluation(self) -> bool:
        """Return True: evaluations score the second attempt."""
        return True

    def __call__(self, environment: Environment, judge: RewardCallback, /) -> Environment:
        """Wrap the environment of an episode; see `EnvironmentWrapper.__call__`."""
        return _Twice(environment, judge, self.sentence)


class _Twice(EnvironmentProxy):
    def __init__(self, environment: Environment, judge: RewardCallback, sentence: str) -> None:
        super().__init__(environment, judge)
        self.sentence, self.asked = sentence, False

    async def step(self, action: Message) -> StepResult:
        result = await super().step(action)
        if not result.terminated or self.asked:
            return result
        self.asked = True
        observation = Observation((*result.observation.messages, user(self.sentence)))
        return replace(result, observation=observation, terminated=False, reason=None)
