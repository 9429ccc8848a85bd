"""How is a tool call executed? Looked up, checked, run within a deadline, and answered, always.

Whatever a tool does (raise, hang, return a megabyte), the call comes back as one short text and a
`CallRecord` that says what happened.

Easy to get wrong: an async deadline cannot interrupt a plain function, so those run in a thread.
A hung one is left behind in it (`threads.py`).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from whetstone.chat import ToolCall, ToolSpec
from whetstone.errors import InfrastructureError, RecipeError, ToolError, ToolStop, did_you_mean
from whetstone.tools.schema import Tool, tool_from_function
from whetstone.tools.threads import run_in_thread
from whetstone.trajectory import CallRecord


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call came back with."""

    text: str
    record: CallRecord


class Toolset:
    """The tools on offer in an episode.

    Args:
        functions: Typed functions, sync or async.
        timeout_seconds: How long one call may run.
        max_result_characters: Longer results keep their head and tail.

    Raises:
        RecipeError: Two tools share a name, or a function cannot be a tool.
    """

    def __init__(
        self,
        functions: Iterable[Callable[..., Any]],
        *,
        timeout_seconds: float = 10.0,
        max_result_characters: int = 4000,
    ) -> None:
        self.timeout_seconds, self.max_result_characters = timeout_seconds, max_result_characters
        self._tools: dict[str, Tool] = {}
        for tool in map(tool_from_function, functions):
            if tool.spec.name in self._tools:
                raise RecipeError(f'two tools are named "{tool.spec.name}"; the model could not tell them apart')
            self._tools[tool.spec.name] = tool

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told of each tool."""
        return tuple(tool.spec for tool in self._tools.values())

    async def call(self, call: ToolCall) -> Answer:
        """Execute one call. Never raises for what the model or the tool did wrong.

        Raises:
            InfrastructureError: The tool says that what it stands on has failed.
        """
        tool = self._tools.get(call.name)
        if tool is None:
            near = did_you_mean(call.name, self._tools)
            return _refused(call, "unknown_tool", f'there is no tool "{call.name}"{near}')
        try:
            arguments = tool.bind(call.arguments)
        except ToolError as error:
            return _refused(call, "invalid_arguments", str(error))
        started = time.perf_counter()
        outcome, text = await self._run(tool, arguments)
        shown, truncated = _within(text, self.max_result_characters)
        seconds = time.perf_counter() - started
        return Answer(shown, CallRecord(call.name, outcome, seconds, truncated))

    async def _run(self, tool: Tool, arguments: dict[str, Any]) -> tuple[str, str]:
        """(outcome, text)"""
        try:
            async with asyncio.timeout(self.timeout_seconds) as deadline:
                if inspect.iscoroutinefunction(tool.function):
                    result = await tool.function(**arguments)
                else:
                    result = await run_in_thread(tool.function, arguments)
                    if inspect.isawaitable(result):
                        result = await result
            return "ok", result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        except TimeoutError as error:
            if deadline.expired():
                return "timeout", f"error: {tool.spec.name} did not answer within {self.timeout_seconds:g} s"
            return "tool_error", f"error: {error or 'TimeoutError'}"
        except ToolStop as stop:
            return "stopped", str(stop)
        except ToolError as error:
            return "tool_error", f"error: {error}"
        except InfrastructureError:
            raise
        except Exception as error:  # a tool is foreign code: its failure is the model's to read, and is recorded
            return "tool_error", f"error: {type(error).__name__}: {error}"


def _refused(call: ToolCall, outcome: str, reason: str) -> Answer:
    return Answer(f"error: {reason}", CallRecord(call.name, outcome, 0.0))


def _within(text: str, limit: int) -> tuple[str, bool]:
    """The text, or its head and tail around a note of how much is missing."""
    if len(text) <= limit:
        return text, False
    head, tail = text[: limit * 2 // 3], text[len(text) - limit // 3 :]
    return f"{head}\n[… {len(text) - len(head) - len(tail)} characters left out …]\n{tail}", True
