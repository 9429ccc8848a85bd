"""A planner over frozen models: the policy says what to do next, others do it, check it and answer.

    plan (the policy) → executor → tools → verifier: enough? → no: what came of it is read, and planned on
                                                            → yes: generator → `answer` of the verdict

Nothing but plans is the policy's; what the others say comes back as an observation, or not at all. The reward
`submitted_answer` judges the answer.

Easy to get wrong: the others cost, too. What each is asked for stands among the calls of a turn, at its price.

Source: Li et al. 2025 (AgentFlow, Flow-GRPO), arXiv:2510.05592; without a verifier, where the planner says itself when
it is enough: Mei et al. 2025 (AI-SearchPlanner), arXiv:2508.20368.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from whetstone.chat import Message, ToolSpec, system, user
from whetstone.environments.protocol import Observation, StepResult
from whetstone.seeding import derive_seed
from whetstone.tools import FrozenModel, Toolset, model_named
from whetstone.trajectory import CallRecord, Task

_NOTHING = "Say in words what is to be done next."


class Planner:
    """A question, and models that carry out plans for it.

    Ends: terminated when the verifier says so, when the planner does where there is no verifier, or behind `steps`; in
    each case the generator has answered.

    Args:
        models: By name; filled in from the recipe's `models`.
        executor: Reads question and plan and calls tools, or says something itself.
        generator: Reads question, plans and what came of them, and answers.
        verifier: Reads the same, and says `stop` where that is enough; none: the planner does, by `stop`.
        tools: What the executor may call, as of the environment `tools`.
        stop: The word by which the verifier, or the planner, says that it is enough.
        steps: Plans that are carried out; then it is enough in any case.
        instruction: A system message for the planner; none by default.
        tool_timeout_seconds: How long one call may run.

    Raises:
        RecipeError: There is no model of a name.
    """

    replayable = False

    def __init__(
        self,
        *,
        models: Mapping[str, FrozenModel] | None = None,
        executor: str,
        generator: str,
        verifier: str | None = None,
        tools: Sequence[Any] = (),
        stop: str = "stop",
        steps: int = 4,
        instruction: str = "",
        tool_timeout_seconds: float = 10.0,
    ) -> None:
        self.executor, self.generator = model_named(models, executor), model_named(models, generator)
        self.verifier = None if verifier is None else model_named(models, verifier)
        self.toolset = Toolset(tools, timeout_seconds=tool_timeout_seconds)
        self.stop, self.steps, self.instruction = stop.lower(), steps, instruction
        self.task: Task | None = None
        self.seed = 0
        self.done: list[tuple[str, str]] = []
        """(plan, what came of it) so far."""
        self.answer: str | None = None
        self._calls: list[CallRecord] = []

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """The question."""
        self.task, self.seed, self.done, self.answer = task, seed, [], None
        await self.toolset.open(task, seed=seed)
        instruction = (system(self.instruction),) if self.instruction else ()
        return Observation((*instruction, *task.opening))

    async def step(self, action: Message) -> StepResult:
        """Carry out one plan.

        Raises:
            InfrastructureError: A model could not be asked, or what a tool stands on has failed.
        """
        self._calls = []
        plan = action.text.strip()
        if not plan:
            return StepResult(Observation((user(_NOTHING),)))
        if self.verifier is None and self._stops(plan):
            return await self._answered()
        self.done.append((plan, await self._carried_out(plan)))
        if len(self.done) >= self.steps or (self.verifier is not None and await self._enough(self.verifier)):
            return await self._answered()
        return StepResult(Observation((user(self.done[-1][1]),)), calls=tuple(self._calls))

    def verdict(self) -> Mapping[str, Any]:
        """What the generator answered, if it came to that, and how many plans were carried out."""
        return {"plans": len(self.done), **({} if self.answer is None else {"answer": self.answer})}

    async def close(self) -> None:
        """Let go of what the tools hold."""
        await self.toolset.close()

    async def _carried_out(self, plan: str) -> str:
        """What the executor's calls came back with; without a call, what it says."""
        assert self.task is not None
        said = await self._asked(self.executor, f"{self.task.prompt}\nplan: {plan}", self.toolset.specs)
        results = []
        for call in said.tool_calls:
            answer = await self.toolset.call(call)
            if answer.failure is not None:
                raise answer.failure
            self._calls.append(answer.record)
            results.append(answer.text)
        return "\n".join(results) if results else said.text

    async def _enough(self, verifier: FrozenModel) -> bool:
        return self._stops((await self._asked(verifier, self._memory())).text)

    async def _answered(self) -> StepResult:
        self.answer = (await self._asked(self.generator, self._memory())).text
        return StepResult(Observation((user(self.answer),)), terminated=True, calls=tuple(self._calls))

    async def _asked(self, model: FrozenModel, text: str, tools: Sequence[ToolSpec] = ()) -> Message:
        began = time.perf_counter()
        seed = derive_seed(self.seed, model.name, len(self.done), len(self._calls))
        said = await model.answer([user(text)], tools=tools, seed=seed)
        self._calls.append(CallRecord(model.name, "ok", time.perf_counter() - began, cost=model.price))
        return said

    def _memory(self) -> str:
        """The question, and what was done for it."""
        assert self.task is not None
        return "\n".join([self.task.prompt, *(f"{plan} -> {came}" for plan, came in self.done)])

    def _stops(self, text: str) -> bool:
        return text.strip().lower().startswith(self.stop)
