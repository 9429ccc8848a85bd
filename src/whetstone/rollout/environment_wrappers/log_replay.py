"""An expert's episode is walked through: the policy acts, and where it errs the expert's action stands in its place.

Easy to get wrong: what the policy said is trained, with its low reward; what the next turn reads is the expert's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from whetstone.chat import Message, ToolSpec
from whetstone.environments import Environment, Observation, StepResult
from whetstone.plugins import OptionError
from whetstone.rollout.environment_wrappers.answering import Answering
from whetstone.rollout.protocol import Judge
from whetstone.tasks import Expert, Source
from whetstone.tools.threads import run_in_turn
from whetstone.trajectory import EndReason, Task


class LogReplay:
    """An action that is not the expert's is replaced by his, `patches` times; then the episode is over (UI-S1).

    Without patches it ends at the first error. A turn's reward is 1 where it did what the expert does, and 0 where not,
    whatever the world pays for it. Use it with the reward `matched_calls`, or `expert_match` for text environments, and
    the estimator `ui_s1`.

    Source: UI-S1 2025, arXiv:2509.11543, and its code (`universal_multiround.py`).

    Args:
        source: Where the expert is.
        patches: Errors an episode survives; -1: all.
    """

    def __init__(self, *, source: Source, patches: int = 2) -> None:
        if not isinstance(source, Expert):
            raise OptionError("patches", "the task source has no expert whose actions could be followed")
        if patches < -1:
            raise OptionError("patches", f"zero or more, or -1 for all, got {patches}")
        self.expert, self.patches = source, patches

    def __call__(self, environment: Environment, judge: Judge, /) -> Environment:
        """See `EnvironmentWrapper`."""
        return _Following(environment, judge, self.expert, self.patches)


class _Following(Answering):
    def __init__(self, environment: Environment, judge: Judge, expert: Expert, patches: int) -> None:
        super().__init__(environment, judge)
        self.expert, self.patches = expert, patches
        self.said: list[Message] = []
        self.tools: Sequence[ToolSpec] = ()

    async def reset(self, task: Task, *, seed: int) -> Observation:
        first = await super().reset(task, seed=seed)
        self.said, self.tools = list(first.messages), first.tools
        return first

    async def step(self, action: Message) -> StepResult:
        wanted = await run_in_turn(self.expert.demonstrate, self.task, self.said, self.tools)
        right = same_action(action, wanted)
        if not right and self.patches == 0:
            return StepResult(Observation(()), reward=0.0, reason=EndReason.EARLY_STOPPED)
        if not right:
            self.patches -= 1
        result = await super().step(action if right else wanted)
        self.said += [action if right else wanted, *result.observation.messages]
        return replace(result, reward=1.0) if right else replace(result, reward=0.0, instead=wanted)


def same_action(action: Message, other: Message) -> bool:
    """Whether two actions do the same: the same calls, or without any the same words."""
    if len(action.tool_calls) != len(other.tool_calls) or action.malformed:
        return False
    if not action.tool_calls:
        return action.text.strip() == other.text.strip()
    pairs = zip(action.tool_calls, other.tool_calls, strict=True)
    return all(a.name == b.name and _read(a.arguments) == _read(b.arguments) for a, b in pairs)


def _read(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
