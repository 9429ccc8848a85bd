"""How is a tool call executed? Looked up, checked, run within a deadline, and answered, always.

Whatever a tool does (raise, hang, return a megabyte, speak in escape sequences), the call comes back as short content
and a `CallRecord` that says what happened.

Easy to get wrong: an async deadline cannot interrupt a plain function, so those run in a thread.
A hung one is left behind in it (`threads.py`).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from whetstone.chat import Image, Text, ToolCall, ToolSpec
from whetstone.errors import InfrastructureError, RecipeError, ToolError, ToolStop, WhetstoneError, did_you_mean
from whetstone.shortening import shortened
from whetstone.stopping import asked_to_stop
from whetstone.tools.plain_text import plain
from whetstone.tools.protocol import LIFETIME, Episode, Result
from whetstone.tools.schema import Tool, tool_from_function
from whetstone.tools.threads import run_in_thread
from whetstone.trajectory import CallRecord, Task

_MOST_IMAGES = 8
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call came back with."""

    content: tuple[Text | Image, ...]
    record: CallRecord

    @property
    def text(self) -> str:
        """The text of it."""
        return "".join(part.text for part in self.content if isinstance(part, Text))


class Toolset:
    """The tools on offer in an episode.

    Args:
        tools: Typed functions, sync or async, and classes whose methods are tools; see `protocol.py`. Of a class an
            object is made here, and it is open from `open` to `close`.
        timeout_seconds: How long one call may run, where the tool does not see to it itself.
        max_result_characters: Longer results keep their head and tail.

    Raises:
        RecipeError: Two tools share a name, or a function cannot be a tool.
    """

    def __init__(
        self,
        tools: Iterable[Any],
        *,
        timeout_seconds: float = 10.0,
        max_result_characters: int = 4000,
    ) -> None:
        self.timeout_seconds, self.max_result_characters = timeout_seconds, max_result_characters
        self.holders: list[Any] = []
        """What keeps something for the length of an episode."""
        self.episode: Episode | None = None
        """The one under way."""
        self._opened = False
        self._alone: list[Tool] = []
        self._tools: dict[str, Tool] = {}
        for item in tools:
            if _is_class(item):
                self.holders.append(_holder(item))
            elif isinstance(item, Tool):
                self._alone.append(item)
            elif callable(item) and not _holds_tools(item):
                self._alone.append(tool_from_function(item))
            elif _holds_something(item):
                self.holders.append(item)
            else:
                raise RecipeError(f"{item!r} is no tool: a tool is a typed function, or a class with public methods")
        self._agree()
        self._list()
        if not any(getattr(holder, "changing", False) for holder in self.holders):
            for holder in self.holders:
                for name in getattr(holder, "prices", ()):
                    if name not in self._tools:
                        raise RecipeError(f'prices: there is no tool "{name}"{did_you_mean(name, self._tools)}')

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told of each tool."""
        return tuple(tool.spec for tool in self._tools.values())

    @property
    def stateless(self) -> bool:
        """Whether an answer depends on its call alone."""
        return all(getattr(holder, "stateless", False) for holder in self.holders)

    @property
    def replayable(self) -> bool:
        """Whether the same calls lead to the same place again."""
        return all(getattr(holder, "replayable", True) for holder in self.holders)

    @property
    def declared(self) -> dict[str, str]:
        """By name, how tools work, where models get used to it."""
        return {name: said for holder in self.holders for name, said in getattr(holder, "declared", {}).items()}

    async def open(self, task: Task, *, seed: int) -> None:
        """Begin an episode.

        Raises:
            InfrastructureError: What a tool stands on is not there.
        """
        if self._opened:
            await self.close()
        self._opened = True
        episode = self.episode = Episode(task, seed)
        for holder in self.holders:
            if hasattr(holder, "open"):
                await _awaited(holder.open(episode))
        self._list()

    async def close(self) -> None:
        """Let go of everything; the first failure is raised when all have been asked."""
        self._opened, failures = False, []
        for holder in reversed(self.holders):
            if hasattr(holder, "close"):
                try:
                    await _awaited(holder.close())
                except Exception as error:
                    failures.append(error)
        if failures:
            raise failures[0]

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
            if tool.binds_slowly:
                arguments = await run_in_thread(tool.bind, {"arguments": call.arguments})
            else:
                arguments = tool.bind(call.arguments)
        except ToolError as error:
            return _refused(call, "invalid_arguments", str(error))
        cost = 0.0
        for holder in self.holders:
            if hasattr(holder, "charge"):
                said, cost = holder.charge(call.name)
                if said:
                    return _refused(call, "budget_exhausted", said)
        started = time.perf_counter()
        result = await self._run(tool, arguments)
        content, truncated = self._within(result.content)
        seconds = time.perf_counter() - started
        if any(getattr(holder, "changing", False) for holder in self.holders):
            self._list()
        return Answer(content, CallRecord(call.name, result.outcome, seconds, truncated, cost))

    async def verdict(self) -> dict[str, Any]:
        """What became of what tools hold; a success where all of them call it one, and the least of their scores."""
        said: dict[str, Any] = {}
        for holder in self.holders:
            if hasattr(holder, "verdict"):
                one = dict(await _awaited(holder.verdict()))
                for name, least in (("success", min), ("score", min)):
                    if name in said and name in one:
                        one[name] = least(said[name], one[name])
                said |= one
        return said

    def _agree(self) -> None:
        """See that tools which share something are given it alike.

        Raises:
            RecipeError: They are not; the message says in what they differ.
        """
        known: dict[str, tuple[Any, str]] = {}
        for holder in self.holders:
            name = type(holder).__name__.lower()
            for option, value in getattr(holder, "must_agree", {}).items():
                other, whose = known.setdefault(option, (value, name))
                if other != value:
                    raise RecipeError(f"{whose} and {name} share a sandbox and differ in `{option}`: {other}, {value}")

    def _list(self) -> None:
        """Read anew which tools there are.

        Raises:
            RecipeError: Two share a name.
        """
        self._tools = {}
        for tool in (*self._alone, *(tool for holder in self.holders for tool in tools_of(holder))):
            if tool.spec.name in self._tools:
                raise RecipeError(f'two tools are named "{tool.spec.name}"; the model could not tell them apart')
            self._tools[tool.spec.name] = tool

    async def _run(self, tool: Tool, arguments: dict[str, Any]) -> Result:
        seconds = None if tool.keeps_time else self.timeout_seconds
        try:
            async with asyncio.timeout(seconds) as deadline:
                if inspect.iscoroutinefunction(tool.function):
                    result = await tool.function(**arguments)
                else:
                    result = await run_in_thread(tool.function, arguments)
                    if inspect.isawaitable(result):
                        result = await result
            return _as_result(result)
        except TimeoutError as error:
            if deadline.expired():
                return _failed("timeout", f"{tool.spec.name} did not answer within {self.timeout_seconds:g} s")
            return _failed("tool_error", str(error) or "TimeoutError")
        except ToolStop as stop:
            return Result((Text(str(stop)),), "stopped")
        except ToolError as error:
            return _failed("tool_error", str(error))
        except InfrastructureError:
            raise
        except asyncio.CancelledError:
            if asked_to_stop():
                raise
            return _failed("tool_error", "CancelledError")
        except (Exception, SystemExit) as error:
            # a tool is foreign code: its failure is the model's to read, and is recorded
            return _failed("tool_error", f"{type(error).__name__}: {error}")

    def _within(self, content: tuple[Text | Image, ...]) -> tuple[tuple[Text | Image, ...], bool]:
        """The content with as much text as may be, all of it plain, and no more images than anybody looks at."""
        kept: list[Text | Image] = []
        room, truncated, images = self.max_result_characters, False, 0
        for part in content:
            if isinstance(part, Image):
                images += 1
                if images <= _MOST_IMAGES:
                    kept.append(part)
                truncated = truncated or images > _MOST_IMAGES
                continue
            text, cut = shortened(plain(part.text), room)
            kept.append(replace(part, text=text))
            room, truncated = max(room - len(text), 0), truncated or cut
        return tuple(kept), truncated


def tools_of(holder: Any) -> list[Tool]:
    """The tools of an object: those it names, or its public methods.

    Raises:
        RecipeError: A method cannot be a tool.
    """
    if hasattr(holder, "tools"):
        return [tool if isinstance(tool, Tool) else tool_from_function(tool) for tool in holder.tools()]
    names = dict.fromkeys(name for kind in reversed(type(holder).__mro__) for name in vars(kind))  # as they are written
    methods = [getattr(holder, name) for name in names if not name.startswith("_") and name not in LIFETIME]
    return [tool_from_function(method) for method in methods if inspect.ismethod(method)]


def _holder(item: Any) -> Any:
    """An object of a class of tools.

    Raises:
        RecipeError: It cannot be made, or has nothing to offer.
    """
    kind = item.func if isinstance(item, functools.partial) else item
    try:
        made = item()
    except (WhetstoneError, InfrastructureError):
        raise
    except (Exception, SystemExit) as error:
        raise RecipeError(f'tool "{kind.__name__}" cannot be made: {type(error).__name__}: {error}') from error
    if not _holds_something(made):
        raise RecipeError(f'tool "{kind.__name__}" has no public method, so there is nothing a model could call')
    return made


def _holds_something(item: Any) -> bool:
    """Whether an object has tools, or a say in those of others."""
    if inspect.isroutine(item) or isinstance(item, str | bytes | int | float | list | tuple | dict | set):
        return False
    return any(hasattr(item, name) for name in ("tools", *LIFETIME)) or bool(tools_of(item))


def _is_class(item: Any) -> bool:
    return inspect.isclass(item.func if isinstance(item, functools.partial) else item)


def _holds_tools(item: Any) -> bool:
    return not inspect.isroutine(item) and any(hasattr(item, name) for name in ("tools", "open"))


def _as_result(value: Any) -> Result:
    """What a tool returned, as content."""
    if isinstance(value, Result):
        return value
    if isinstance(value, str):
        return Result((Text(value),))
    if isinstance(value, Text | Image):
        return Result((value,))
    if isinstance(value, tuple | list) and value and all(isinstance(part, Text | Image) for part in value):
        return Result(tuple(value))
    if isinstance(value, BaseModel):
        return Result((Text(value.model_dump_json()),))
    if isinstance(value, bytes):
        return Result((Text(value.decode()),))
    return Result((Text(json.dumps(value, ensure_ascii=False, default=_described)),))


def _described(value: Any) -> str:
    """What JSON has no form for, as its own text.

    Raises:
        TypeError: It has none, and would be read as an address in memory.
    """
    text = str(value)
    if _ADDRESS.search(text):
        raise TypeError(f"the tool returned an object of type {type(value).__name__}, neither text nor JSON")
    return text


def _failed(outcome: Any, reason: str) -> Result:
    return Result((Text(f"error: {reason}"),), outcome)


def _refused(call: ToolCall, outcome: str, reason: str) -> Answer:
    return Answer((Text(plain(f"error: {reason}")),), CallRecord(plain(call.name), outcome, 0.0))


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
