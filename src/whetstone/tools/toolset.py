"""How is a tool call executed? Looked up, checked, run within a deadline, and answered, always.

Whatever a tool does (raise, hang, return a megabyte), the call comes back as one short text and a
`CallRecord` that says what happened.

Easy to get wrong: an async deadline cannot interrupt a plain function, so those run in a thread.
A hung one is left behind in it; the thread is a daemon and does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from whetstone.chat import ToolCall, ToolSpec
from whetstone.errors import InfrastructureError, RecipeError, ToolError, ToolStop, did_you_mean
from whetstone.tools.schema import Tool, tool_from_function
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
                    result = await _in_thread(tool.function, arguments)
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


async def _in_thread(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Run a plain function in a daemon thread of its own.

    `asyncio.to_thread` would do, were it not that its pool is joined at exit: one hung tool and the
    process never ends, and enough of them and no tool runs any more.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result: Any = None
        failure: BaseException | None = None
        try:
            result = function(**arguments)
        except StopIteration as error:  # a future refuses to carry it
            failure = RuntimeError(f"StopIteration: {error}")
        except BaseException as error:
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, name=f"tool {getattr(function, '__name__', '')}", daemon=True).start()
    return await future
