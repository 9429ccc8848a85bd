"""The environment most agents live in: a question, some tools, and an answer without a call.

The episode ends with the first action that calls nothing: that is the answer. Calls that cannot be
read, or cannot be executed, come back as errors the model reads; they never raise.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Literal

from whetstone.chat import Message, system, tool_result, user
from whetstone.environments.protocol import Observation, StepResult
from whetstone.parts import OptionError
from whetstone.tools import Answer, Toolset
from whetstone.trajectory import CallRecord, EndReason, Task


class ToolEnvironment:
    """Tools and a task's prompt.

    Ends: terminated on an action without a call; `tool_stopped` where a tool says so;
    `malformed_action` on an unreadable call where `on_malformed` is `end`.

    Args:
        tools: Typed functions, and classes of tools, made anew for each episode; none at all leaves the model to answer
            by itself.
        instruction: A system message for every task; none by default.
        max_calls_per_turn: Calls one action may hold; an action with more is refused whole.
        tool_timeout_seconds: How long one call may run.
        max_result_characters: Longer results keep their head and tail.
        on_malformed: `retry` lets the model read what was wrong; `end` ends the episode.
        answer: A pattern an answer must hold, such as `Answer:`; an action that neither calls nor holds it is told
            so, and the episode goes on. Empty: any action that calls nothing is an answer.

    Raises:
        OptionError: `answer` is no pattern.
    """

    def __init__(
        self,
        *,
        tools: Sequence[Any] = (),
        instruction: str = "",
        max_calls_per_turn: int = 8,
        tool_timeout_seconds: float = 10.0,
        max_result_characters: int = 4000,
        on_malformed: Literal["retry", "end"] = "retry",
        answer: str = "",
    ) -> None:
        try:
            self.answer = re.compile(answer)
        except re.error as error:
            raise OptionError("answer", f"{answer!r} is no pattern: {error}") from None
        self.toolset = Toolset(tools, timeout_seconds=tool_timeout_seconds, max_result_characters=max_result_characters)
        self._offered = self.toolset.specs
        self.instruction, self.max_calls_per_turn, self.on_malformed = instruction, max_calls_per_turn, on_malformed

    @property
    def stateless(self) -> bool:
        """Whether answers depend on the calls alone, so that an episode can go on behind recorded turns."""
        return self.toolset.stateless

    @property
    def replayable(self) -> bool:
        """Whether the same calls lead to the same place again."""
        return self.toolset.replayable

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """The task's prompt, behind the instruction if there is one. What is random in tools comes from the seed."""
        await self.toolset.open(task, seed=seed)
        self._offered = self.toolset.specs
        opening = (system(self.instruction), user(task.prompt)) if self.instruction else (user(task.prompt),)
        return Observation(opening, self._offered, tuple(self.toolset.declared.items()))

    async def step(self, action: Message) -> StepResult:
        """Execute the calls at once, side by side; answer each, in order."""
        if not action.tool_calls and not action.malformed:
            if not self.answer.search(action.text):
                return StepResult(Observation((user("That is neither a call nor an answer."),)))
            return StepResult(Observation(()), terminated=True)
        if action.malformed:
            # none of the calls is executed: what the model meant as a whole is not known
            records = tuple(CallRecord("", "malformed_call", 0.0) for _ in action.malformed)
            answers = tuple(tool_result(f"error: {what}") for what in action.malformed)
            ended = EndReason.MALFORMED_ACTION if self.on_malformed == "end" else None
            return StepResult(Observation(answers), reason=ended, calls=records)
        if len(action.tool_calls) > self.max_calls_per_turn:
            refusal = (
                f"error: {len(action.tool_calls)} calls in one turn, {self.max_calls_per_turn} allowed; none was made"
            )
            records = tuple(CallRecord(call.name, "too_many_calls", 0.0) for call in action.tool_calls)
            return StepResult(Observation((tool_result(refusal),)), calls=records)
        results: list[Answer] = await asyncio.gather(*map(self.toolset.call, action.tool_calls))
        messages = tuple(
            Message("tool", answer.content, tool_call_id=call.id)
            for call, answer in zip(action.tool_calls, results, strict=True)
        )
        offered = self.toolset.specs
        changed, self._offered = offered if offered != self._offered else (), offered
        records = tuple(answer.record for answer in results)
        stopped = any(record.outcome == "stopped" for record in records)
        ended = EndReason.TOOL_STOPPED if stopped else None
        return StepResult(Observation(messages, changed), reason=ended, calls=records)

    async def close(self) -> None:
        """Let go of what tools hold."""
        await self.toolset.close()
