"""Planner over frozen models: the policy writes plans; other models execute, verify and answer.

    plan (the policy) → executor → tools → verifier: enough? → no: the policy reads the result and plans again
                                                            → yes: generator → `answer` of the verdict

Only the plans are sampled by the policy. The outputs of the other models are observations or hidden. The reward
`submitted_answer` scores the answer.

Note:
    The other models cost too: each of their calls is a call record of the turn, with its price.

Source: Li et al. 2025 (AgentFlow, Flow-GRPO), arXiv:2510.05592; without a verifier, if the planner decides when to
stop: Mei et al. 2025 (AI-SearchPlanner), arXiv:2508.20368.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from whetstone.chat import Message, ToolSpec, system, user
from whetstone.environments.protocol import Observation, StepResult
from whetstone.seeding import derive_seed
from whetstone.tools import FrozenModel, Toolset, find_model
from whetstone.trajectory import CallRecord, Task

_NOTHING = "Say in words what is to be done next."


class Planner:
    """Environment in which the policy plans and frozen models execute and verify.

    Ends: terminated when the verifier stops, when the planner stops if there is no verifier, or after `steps` plans;
    the generator always answers.

    Args:
        models: By name; filled in from the recipe's `models`.
        executor: Name of the model that reads the question and a plan, and calls tools or writes a text.
        generator: Name of the model that reads the question, the plans and their results, and answers.
        verifier: Name of the model that reads the same and answers `stop` if the results suffice; null: the planner
            decides, by `stop`.
        tools: Tools of the executor, as in the environment `tools`.
        stop: The word with which the verifier, or the planner, stops.
        steps: Maximum number of plans.
        instruction: A system message for the planner; none by default.
        tool_timeout_seconds: Timeout of one call in seconds.

    Raises:
        RecipeError: If there is no model with one of the names.
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
        self.executor, self.generator = find_model(models, executor), find_model(models, generator)
        self.verifier = None if verifier is None else find_model(models, verifier)
        self.toolset = Toolset(tools, timeout_seconds=tool_timeout_seconds)
        self.stop, self.steps, self.instruction = stop.lower(), steps, instruction
        self.task: Task | None = None
        self.seed = 0
        self.done: list[tuple[str, str]] = []
        """Pairs (plan, result) of the executed plans."""
        self.answer: str | None = None
        self._calls: list[CallRecord] = []

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Open the tools of the executor and return the instruction and the question."""
        self.task, self.seed, self.done, self.answer = task, seed, [], None
        await self.toolset.open(task, seed=seed)
        instruction = (system(self.instruction),) if self.instruction else ()
        return Observation((*instruction, *task.opening))

    async def step(self, action: Message) -> StepResult:
        """Execute the plan in the action's text and return its result.

        An empty plan gets an error message. If the episode ends, the observation is the generator's answer.

        Raises:
            InfrastructureError: If a model is unavailable, or the backend of a tool failed.
        """
        self._calls = []
        plan = action.text.strip()
        if not plan:
            return StepResult(Observation((user(_NOTHING),)))
        if self.verifier is None and self._is_stop(plan):
            return await self._finish()
        self.done.append((plan, await self._execute_plan(plan)))
        if len(self.done) >= self.steps or (self.verifier is not None and await self._is_enough(self.verifier)):
            return await self._finish()
        return StepResult(Observation((user(self.done[-1][1]),)), calls=tuple(self._calls))

    def verdict(self) -> Mapping[str, Any]:
        """Return the generator's `answer`, if any, and the number of executed `plans`."""
        return {"plans": len(self.done), **({} if self.answer is None else {"answer": self.answer})}

    async def close(self) -> None:
        """Release the resources of the tools that the executor calls."""
        await self.toolset.close()

    async def _execute_plan(self, plan: str) -> str:
        """Return the results of the executor's tool calls, or its text without a call."""
        assert self.task is not None
        reply = await self._ask_model(self.executor, f"{self.task.prompt}\nplan: {plan}", self.toolset.specs)
        results = []
        for call in reply.tool_calls:
            answer = await self.toolset.call(call)
            if answer.failure is not None:
                raise answer.failure
            self._calls.append(answer.record)
            results.append(answer.text)
        return "\n".join(results) if results else reply.text

    async def _is_enough(self, verifier: FrozenModel) -> bool:
        """Return whether the verifier stops on the question, the plans and their results."""
        return self._is_stop((await self._ask_model(verifier, self._format_memory())).text)

    async def _finish(self) -> StepResult:
        """Let the generator answer and return the end of the episode."""
        self.answer = (await self._ask_model(self.generator, self._format_memory())).text
        return StepResult(Observation((user(self.answer),)), terminated=True, calls=tuple(self._calls))

    async def _ask_model(self, model: FrozenModel, text: str, tools: Sequence[ToolSpec] = ()) -> Message:
        """Return the message of a frozen model and record the call with its price."""
        began = time.perf_counter()
        seed = derive_seed(self.seed, model.name, len(self.done), len(self._calls))
        reply = await model.answer([user(text)], tools=tools, seed=seed)
        self._calls.append(CallRecord(model.name, "ok", time.perf_counter() - began, cost=model.price))
        return reply

    def _format_memory(self) -> str:
        """Return the question and one line per executed plan with its result."""
        assert self.task is not None
        return "\n".join([self.task.prompt, *(f"{plan} -> {came}" for plan, came in self.done)])

    def _is_stop(self, text: str) -> bool:
        return text.strip().lower().startswith(self.stop)
