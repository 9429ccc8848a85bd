"""Environment wrapper that follows an expert's episode: a wrong action is replaced by the expert's.

Note:
    The policy's action is trained, with its low reward; the next turn reads the expert's action.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from whetstone.chat import Message, ToolSpec
from whetstone.environments import Environment, Observation, StepResult
from whetstone.plugins import OptionError
from whetstone.rollout.environment_wrappers.delegating_wrapper import EnvironmentProxy
from whetstone.rollout.protocol import RewardCallback
from whetstone.tasks import Expert, Source
from whetstone.tools.thread_runner import run_in_turn
from whetstone.trajectory import EndReason, Task


class LogReplay:
    """Replaces an action that differs from the expert's, at most `patches` times; then the episode ends (UI-S1).

    Without patches the episode ends at the first error. The reward of a turn is 1 if its action equals the expert's,
    else 0; the environment's reward is ignored. Use it with the reward `matched_calls`, or `expert_match` for text
    environments, and the estimator `ui_s1`.

    Source: UI-S1 2025, arXiv:2509.11543, and its code (`universal_multiround.py`).

    Args:
        source: Task source with the expert.
        patches: Maximum number of errors that are replaced; -1: all.
    """

    def __init__(self, *, source: Source, patches: int = 2) -> None:
        if not isinstance(source, Expert):
            raise OptionError(
                "patches", "the task source has no expert with actions to follow; choose a source with an expert"
            )
        if patches < -1:
            raise OptionError("patches", f"must be at least 0, or -1 for all, got {patches}")
        self.expert, self.patches = source, patches

    def __call__(self, environment: Environment, judge: RewardCallback, /) -> Environment:
        """Wrap the environment of an episode; see `EnvironmentWrapper.__call__`."""
        return _Following(environment, judge, self.expert, self.patches)


class _Following(EnvironmentProxy):
    def __init__(self, environment: Environment, judge: RewardCallback, expert: Expert, patches: int) -> None:
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
        right = actions_equal(action, wanted)
        if not right and self.patches == 0:
            return StepResult(Observation(()), reward=0.0, reason=EndReason.EARLY_STOPPED)
        if not right:
            self.patches -= 1
        result = await super().step(action if right else wanted)
        self.said += [action if right else wanted, *result.observation.messages]
        return replace(result, reward=1.0) if right else replace(result, reward=0.0, executed_action=wanted)


def actions_equal(action: Message, other: Message) -> bool:
    """Return whether two actions have equal tool calls or, if neither has a call, equal texts.

    Arguments are compared as JSON values.
    """
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
