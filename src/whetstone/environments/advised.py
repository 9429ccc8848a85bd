"""An advisor of a frozen agent: the policy gives advice, and the agent acts in the environment.

    advice (the policy) → agent, which reads the world's words and the advice → world → what it says is read …

The policy reads what the world says; its turns are advice and nothing else. It is paid by what the agent achieves: by
the world's verdict, and turn by turn by what each piece of advice led to.

Easy to get wrong: an agent that does well alone needs no advice. Look at how it does with none (`advice: false`).

Source: Liu et al. 2025 (EPO, explicit policy optimization), arXiv:2502.12486.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from whetstone.chat import Message, user
from whetstone.contracts import fulfils
from whetstone.environments.protocol import Environment, Observation, StepResult
from whetstone.seeding import derive_seed
from whetstone.tools import FrozenModel, model_named
from whetstone.tools.protocol import GivesVerdict
from whetstone.tools.threads import call_user_function
from whetstone.trajectory import CallRecord, Task


class Advised:
    """A world in which a frozen agent acts, advised by the policy.

    Ends: as the world does.

    Args:
        models: By name; filled in from the recipe's `models`.
        agent: Frozen model that acts: it reads the last observation and `advice: …`.
        world: Environment of the agent: a name, or a mapping of name and options.
        actions_per_advice: Number of actions of the agent per piece of advice.
        advice: Show the advice to the agent; false is the baseline without advice.

    Raises:
        RecipeError: There is no model of a name.
    """

    replayable = False

    def __init__(
        self,
        *,
        models: Mapping[str, FrozenModel] | None = None,
        agent: str,
        world: Callable[[], Environment],
        actions_per_advice: int = 1,
        advice: bool = True,
    ) -> None:
        self.agent, self.actions_per_advice, self.advice = model_named(models, agent), actions_per_advice, advice
        self.world = world()
        self.seed = self.acted = 0
        self.seen = Observation(())
        """What the agent reads next."""

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """What the world says first."""
        self.seed, self.acted = seed, 0
        self.seen = await call_user_function(self.world.reset, task, seed=seed)
        return replace(self.seen, tools=())

    async def step(self, action: Message) -> StepResult:
        """Let the agent act by this advice, `actions_per_advice` times or until the world ends.

        Raises:
            InfrastructureError: The agent could not be asked.
        """
        rewards: list[float] = []
        calls: list[CallRecord] = []
        for _ in range(self.actions_per_advice):
            said = await self._acts(action.text, calls)
            result: StepResult = await call_user_function(self.world.step, said)
            tools = result.observation.tools or self.seen.tools
            self.seen = replace(result.observation, tools=tools)
            calls += result.calls
            rewards += [] if result.reward is None else [result.reward]
            if result.ended is not None:
                break
        shown = Observation(_read(self.seen), author=self.seen.author)
        return replace(result, observation=shown, reward=sum(rewards) if rewards else None, calls=tuple(calls))

    async def verdict(self) -> Mapping[str, Any]:
        """What the world says became of it."""
        if not fulfils(self.world, GivesVerdict):
            return {}
        verdict: Mapping[str, Any] = await call_user_function(self.world.verdict)
        return verdict

    async def close(self) -> None:
        """Let go of the world."""
        await call_user_function(self.world.close)

    async def _acts(self, advice: str, calls: list[CallRecord]) -> Message:
        began = time.perf_counter()
        heard = (*self.seen.messages, user(f"advice: {advice}")) if self.advice else self.seen.messages
        seed = derive_seed(self.seed, self.agent.name, self.acted)
        said = await self.agent.answer(heard, tools=self.seen.tools, seed=seed)
        self.acted += 1
        calls.append(CallRecord(self.agent.name, "ok", time.perf_counter() - began, cost=self.agent.price))
        return said


def _read(seen: Observation) -> tuple[Message, ...]:
    """What the world said to the agent's calls, as words to who advises."""
    return tuple(user(message.text) if message.role == "tool" else message for message in seen.messages)
