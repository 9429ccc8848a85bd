"""Environment wrapper with feedback: a wrong answer gets a fixed sentence or a judge's advice; the episode continues.

Note:
    A correct answer ends the episode; it is never confirmed within it. Every turn counts towards the limit, or an agent
    whose actions cannot be parsed would continue for ever.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from whetstone.chat import Message, user
from whetstone.environments import Environment, Observation, StepResult
from whetstone.plugins import OptionError
from whetstone.rewards import make_judge
from whetstone.rewards.judge_rewards.judge_input import format_judged_message
from whetstone.rewards.judges import Judge, Question
from whetstone.rollout.environment_wrappers.delegating_wrapper import EnvironmentProxy
from whetstone.rollout.protocol import RewardCallback
from whetstone.trajectory import Task

_SHAPE: Mapping[str, Any] = {
    "type": "object",
    "properties": {"feedback": {"type": "string", "minLength": 1, "maxLength": 1000}},
    "required": ["feedback"],
    "additionalProperties": False,
}


class TryAgain:
    """Answers a wrong answer with a sentence or feedback in words, up to `attempts` answers in total (UFO, MINT).

    With one attempt it has no effect. Use it with the reward `unary_feedback`. Evaluations report
    `success_by_attempt`. With `feedback`, a judge reads the task and all actions so far, and writes advice without
    knowing the reference. Advice that contains `task.private["answer"]` is replaced by `sentence`, or the policy would
    learn to copy the answer.

    Source: UFO 2025, arXiv:2507.14295, and its code; feedback in words: Wang et al. 2024 (MINT), arXiv:2309.10691.

    Args:
        attempts: Maximum number of answers per episode.
        sentence: User message after a wrong answer.
        feedback: Judge that writes the user message instead: its name, or a mapping with `name` and options.
    """

    def __init__(
        self,
        *,
        attempts: int = 5,
        sentence: str = "That is not correct. Think again and answer once more.",
        feedback: Mapping[str, Any] | str | None = None,
    ) -> None:
        if attempts < 1:
            raise OptionError("attempts", f"must be at least 1, got {attempts}")
        self.attempts, self.sentence = attempts, sentence
        self.judge: Judge | None = None if feedback is None else make_judge(feedback)

    @property
    def at_evaluation(self) -> bool:
        """Return True: training and evaluation have the same environment."""
        return True

    def __call__(self, environment: Environment, judge: RewardCallback, /) -> Environment:
        """Wrap the environment of an episode; see `EnvironmentWrapper.__call__`."""
        return _Asking(environment, judge, self)

    async def write_feedback(self, task: Task, actions: Sequence[Message]) -> str:
        """Return the user message after a wrong answer.

        Args:
            task: Task of the episode.
            actions: Actions so far; the last one is the wrong answer.

        Raises:
            InfrastructureError: If the judge returns no valid answer.
        """
        if self.judge is None:
            return self.sentence
        ask = (
            "The agent's last answer to this task is wrong. Tell the agent in one or two sentences what to check or to "
            "do next. Do not give the answer."
        )
        material = {"task": task.prompt, "actions": "\n".join(map(format_judged_message, actions))}
        feedback = str((await self.judge.answer(Question(ask, material, _SHAPE)))["feedback"])
        answer = re.escape(str(task.private.get("answer", "")).strip())
        reveals = answer and re.search(rf"(?<![\w.]){answer}(?!\w|\.\d)", feedback, re.IGNORECASE)
        return self.sentence if reveals else feedback


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
                message = user(await self.how.write_feedback(self.task, self.actions))
                observation = Observation((*result.observation.messages, message))
                return replace(result, observation=observation, terminated=False, reason=None)
        return result
