"""How is a tool call executed? Looked up, checked, run within a deadline, and answered, always.

Whatever a tool does (raise, hang, return a megabyte, speak in escape sequences), the call comes back as short content
and a `CallRecord` that says what happened. Whose a failure is:

    the model's        what cannot be read or is not on offer, and `ToolError`: it asked for something impossible
    the tool's own     any other exception, `SystemExit` and the like among them, and a result that cannot be shown:
                       `tool_failed` in the record; the model reads it too, since its arguments may have led there
    infrastructure's   `InfrastructureError`, which a tool raises where it would have failed whatever it was asked:
                       `Answer.failure`, and whoever plays the episode ends it

Deadlines: a call may take `timeout_seconds`, a close at least `MIN_CLOSE_SECONDS`; an open may take as long as the
episode. Plain functions run in threads at each of these stages (`threads.py`), async ones in a separate task; one that
ignores its deadline is abandoned.
"""

from __future__ import annotations

import inspect
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from whetstone.chat import Image, Text, ToolCall, ToolSpec
from whetstone.contracts import fulfils
from whetstone.errors import (
    InfrastructureError,
    RecipeError,
    ToolError,
    ToolStop,
    did_you_mean,
    explained,
    innermost,
    said_by,
)
from whetstone.masking import mask_secrets
from whetstone.plain_json import MAX_VALUES
from whetstone.plain_json import plain as json_value
from whetstone.sandbox.host_paths import remove_host_paths
from whetstone.shortening import shortened
from whetstone.stopping import asked_to_stop, pressed
from whetstone.tools.plain_text import plain
from whetstone.tools.protocol import (
    Changing,
    Charges,
    Closes,
    Declares,
    Episode,
    GivesVerdict,
    ListsEveryTool,
    MustAgree,
    OffersTools,
    Opens,
    Priced,
    Result,
    replayable,
    stateless,
)
from whetstone.tools.schema import Tool, tool_from_function
from whetstone.tools.side_effects import CallPolicy, Effect, describe_effects, describe_remedy
from whetstone.tools.threads import call_user_function, is_async, run_in_thread
from whetstone.tools.tool_classes import create_holder, holds_something, holds_tools, is_class, tools_of
from whetstone.trajectory import CallRecord, Task
from whetstone.waiting import DeadlinePassed, deadline, finish_within, waiting_for

_DEFAULT_CALLS = CallPolicy()
_MOST_IMAGES = 8
_MOST_NAME_CHARACTERS = 200
MIN_CLOSE_SECONDS = 10.0
"""Closing a tool may take this long, and as long as one of its calls."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call came back with."""

    content: tuple[Text | Image, ...]
    record: CallRecord
    failure: InfrastructureError | None = None
    """What the tool stands on has failed, whatever was asked: the episode it happened in says nothing."""

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
        calls: Which tools are called. The default calls no tool that declares the effect `write` or `destructive`.

    Raises:
        RecipeError: Two tools share a name, or a function cannot be a tool.
    """

    def __init__(
        self,
        tools: Iterable[Any],
        *,
        timeout_seconds: float = 10.0,
        max_result_characters: int = 4000,
        calls: CallPolicy = _DEFAULT_CALLS,
    ) -> None:
        self.timeout_seconds, self.max_result_characters, self.calls = timeout_seconds, max_result_characters, calls
        self.holders: list[Any] = []
        """What keeps something for the length of an episode."""
        self.episode: Episode | None = None
        """The one under way."""
        self._opened = False
        self._alone: list[Tool] = []
        self._tools: dict[str, Tool] = {}
        for item in tools:
            if is_class(item):
                self.holders.append(create_holder(item))
            elif isinstance(item, Tool):
                self._alone.append(item)
            elif callable(item) and not holds_tools(item):
                self._alone.append(tool_from_function(item))
            elif holds_something(item):
                self.holders.append(item)
            else:
                raise RecipeError(f"{item!r} is no tool: a tool is a typed function, or a class with public methods")
        self._agree()
        self._list()
        if not self._changing():
            for holder in self.holders:
                for name in holder.prices if fulfils(holder, Priced) else ():
                    if name not in self._tools:
                        raise RecipeError(f'prices: there is no tool "{name}"{did_you_mean(name, self._tools)}')

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told of each tool."""
        return tuple(tool.spec for tool in self._tools.values())

    @property
    def effects(self) -> dict[str, Effect | None]:
        """Effect of each tool, those that can come on offer included; None: unknown."""
        later = [tool for holder in self.holders if fulfils(holder, ListsEveryTool) for tool in holder.every_tool()]
        tools = {tool.spec.name: tool.effects for tool in later}
        tools |= {name: tool.effects for name, tool in self._tools.items()}
        return {name: self.calls.effect_of(name, declared) for name, declared in tools.items()}

    @property
    def changing(self) -> bool:
        """Whether tools come and go."""
        return self._changing()

    async def list_effects(self) -> dict[str, Effect | None]:
        """Return `effects` after an MCP server, or another source of changing tools, was asked for its tools.

        Raises:
            InfrastructureError: The server does not respond.
        """
        changing = [holder for holder in self.holders if fulfils(holder, Changing) and holder.changing]
        try:
            for holder in changing:
                if fulfils(holder, Opens):
                    await call_user_function(holder.open, Episode(Task("effects", ""), 0))
            await self._list_again()
            return self.effects
        finally:
            for holder in changing:
                if fulfils(holder, Closes):
                    await call_user_function(holder.close)

    @property
    def stateless(self) -> bool:
        """Whether an answer depends on its call alone."""
        return all(stateless(holder) for holder in self.holders)

    @property
    def replayable(self) -> bool:
        """Whether the same calls lead to the same place again."""
        return all(replayable(holder) for holder in self.holders)

    @property
    def declared(self) -> dict[str, str]:
        """By name, how tools work, where models get used to it."""
        told = [holder.declared for holder in self.holders if fulfils(holder, Declares)]
        return {name: said for declared in told for name, said in declared.items()}

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
            if fulfils(holder, Opens):
                with waiting_for(f"tool {_name_of(holder)} (open)"):
                    await call_user_function(holder.open, episode)
        await self._list_again()

    async def close(self) -> None:
        """Close every tool, the last opened first. One that fails or hangs does not keep the others open.

        Raises:
            BaseException: The first failure; `DeadlinePassed` if a tool was not closed in time.
        """
        self._opened = False
        failures: list[BaseException] = []
        for holder in reversed(self.holders):
            if fulfils(holder, Closes):
                seconds = max(self.timeout_seconds, MIN_CLOSE_SECONDS)
                closing = call_user_function(holder.close)
                try:
                    async with deadline(seconds, owner=f"tool {_name_of(holder)} (close)"):
                        await closing
                except BaseException as error:  # a cancellation, too: what is open is closed first
                    failures.append(error)
        if failures:
            raise failures[0]

    async def call(self, call: ToolCall) -> Answer:
        """Execute one call. Whatever comes of it is an answer: never raises but where the caller itself is stopped."""
        try:
            return await self._called(call)
        except BaseException as error:  # of code around a tool: what it charges, reads arguments with, or lists
            if asked_to_stop() or pressed(error):
                raise
            return self._answer(call, _attributed(error))

    async def _called(self, call: ToolCall) -> Answer:
        if not isinstance(call.name, str) or not isinstance(call.arguments, str):
            return self._answer(
                call, _failed("invalid_arguments", "a call has a name and arguments, both of them texts")
            )
        tool = self._tools.get(call.name)
        if tool is None:
            name = _short_name(call.name)
            return self._answer(
                call, _failed("unknown_tool", f'there is no tool "{name}"{did_you_mean(name, self._tools)}')
            )
        try:
            if tool.binds_slowly:
                arguments = await run_in_thread(tool.bind, call.arguments)
            else:
                arguments = tool.bind(call.arguments)
        except ToolError as error:
            return self._answer(call, _failed("invalid_arguments", said_by(error)))
        effect = self.calls.effect_of(call.name, tool.effects)
        if not self.calls.permits(call.name, effect):
            refused = {call.name: effect}
            reason = f"not called: {describe_effects(refused)}; {describe_remedy(refused)}"
            return self._answer(call, _failed("not_called", reason))
        cost = 0.0
        for holder in self.holders:
            if fulfils(holder, Charges):
                said, price = holder.charge(call.name)
                cost += price
                if said:
                    return self._answer(call, _failed("budget_exhausted", said))
        started = time.perf_counter()
        came = await self._run(tool, arguments)
        seconds = time.perf_counter() - started
        if self._changing():
            await self._list_again()
        return self._answer(call, came, seconds=seconds, cost=cost)

    async def verdict(self) -> dict[str, Any]:
        """What became of what tools hold; a success where all of them call it one, and the least of their scores."""
        said: dict[str, Any] = {}
        for holder in self.holders:
            if fulfils(holder, GivesVerdict):
                with waiting_for(f"tool {_name_of(holder)} (verdict)"):
                    one = dict(await call_user_function(holder.verdict))
                for name, least in (("success", min), ("score", min)):
                    if name in said and name in one:
                        one[name] = least(said[name], one[name])
                said |= one
        return said

    def _changing(self) -> bool:
        return any(fulfils(holder, Changing) and holder.changing for holder in self.holders)

    def _agree(self) -> None:
        """See that tools which share something are given it alike.

        Raises:
            RecipeError: They are not; the message says in what they differ.
        """
        known: dict[str, tuple[Any, str]] = {}
        for holder in self.holders:
            name = type(holder).__name__.lower()
            for option, value in (holder.must_agree if fulfils(holder, MustAgree) else {}).items():
                other, whose = known.setdefault(option, (value, name))
                if other != value:
                    raise RecipeError(f"{whose} and {name} share a sandbox and differ in `{option}`: {other}, {value}")

    def _list(self) -> None:
        """Read anew which tools there are.

        Raises:
            RecipeError: Two share a name.
        """
        tools: dict[str, Tool] = {}
        for tool in (*self._alone, *(tool for holder in self.holders for tool in tools_of(holder))):
            if tool.spec.name in tools:
                raise RecipeError(f'two tools are named "{tool.spec.name}"; the model could not tell them apart')
            tools[tool.spec.name] = tool
        self._tools = tools

    async def _list_again(self) -> None:
        """List the tools in a thread if a holder is asked for them: `tools` is a plain function of a user."""
        if any(fulfils(holder, OffersTools) for holder in self.holders):
            await run_in_thread(self._list)

    async def _run(self, tool: Tool, arguments: dict[str, Any]) -> _Came:
        seconds = None if tool.keeps_time else self.timeout_seconds
        try:
            return await finish_within(seconds, _came_of(tool, arguments), owner=tool.spec.name)
        except DeadlinePassed:
            return _failed("timeout", f"{tool.spec.name} did not answer within {self.timeout_seconds:g} s")

    def _answer(self, call: ToolCall, came: _Came, *, seconds: float = 0.0, cost: float = 0.0) -> Answer:
        """What came of a call, as it is shown and recorded."""
        failure = came if isinstance(came, InfrastructureError) else None
        result = _failed("tool_failed", said_by(came)) if isinstance(came, InfrastructureError) else came
        try:
            content, truncated = self._within(result.content)
        except Exception as error:  # a tool made the result, and may have put anything into it
            why = remove_host_paths(explained(error), user_folders=True)
            result = _failed("tool_failed", f"what the tool returned cannot be shown: {why}")
            content, truncated = self._within(result.content)
        record = CallRecord(_short_name(call.name), result.outcome, seconds, truncated, cost)
        return Answer(content, record, failure)

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
            text, cut = shortened(plain(mask_secrets(part.text)), room)
            kept.append(replace(part, text=text))
            room, truncated = max(room - len(text), 0), truncated or cut
        return tuple(kept), truncated


def _as_result(value: Any) -> Result:
    """Return the content of a value that a tool returned: text as it is, everything else as JSON."""
    if isinstance(value, Result):
        return value
    if isinstance(value, str) and not isinstance(value, Enum):
        return Result((Text(value),))
    if isinstance(value, Text | Image):
        return Result((value,))
    if isinstance(value, tuple | list) and any(isinstance(part, Text | Image) for part in value):
        return Result(tuple(part for one in value for part in _as_result(one).content))
    if isinstance(value, bytes | bytearray):
        return Result((Text(json_value(value)),))
    return Result((Text(json.dumps(json_value(value, other=_described), ensure_ascii=False, allow_nan=False)),))


def _described(value: Any) -> str:
    """Return the text of a value that JSON cannot express.

    Raises:
        TypeError: The text is the address of an object.
    """
    text = explained(value) if isinstance(value, BaseException) else str(value)
    if _ADDRESS.search(text) or f"{id(value):x}" in text.lower() or str(id(value)) in text:
        raise TypeError(f"the tool returned an object of type {type(value).__name__}, neither text nor JSON")
    return text


_Came = Result | InfrastructureError
"""What comes of a call: something to be shown, or nothing that says anything."""


async def _came_of(tool: Tool, arguments: dict[str, Any]) -> _Came:
    """What a tool's function returns, or whose failure it is. Never raises but for a person's second Ctrl-C."""
    try:
        if is_async(tool.function):
            value = await tool.function(**arguments)
        else:
            value = await call_user_function(_call, tool.function, arguments)
        if isinstance(value, AsyncIterator):
            value = await _take(value)
        is_quick = isinstance(value, Result | str)
        return _as_result(value) if is_quick else await run_in_thread(_as_result, value)
    except BaseException as error:  # a tool is foreign code, and may raise anything
        if pressed(error):
            raise
        return _attributed(error)


def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a function and convert its result, which may be a generator, in the same thread."""
    value = function(**arguments)
    return value if inspect.isawaitable(value) or isinstance(value, AsyncIterator) else _as_result(value)


async def _take(values: AsyncIterator[Any]) -> list[Any]:
    """Return the values of an asynchronous generator.

    Raises:
        TypeError: There are more than `MAX_VALUES`.
    """
    taken = []
    async for value in values:
        taken.append(value)
        if len(taken) > MAX_VALUES:
            raise TypeError(f"{type(values).__name__} yields more than {MAX_VALUES} values")
    return taken


def _attributed(error: BaseException) -> _Came:
    """Whose failure an exception is; see the head of this file."""
    error = innermost(error)
    if isinstance(error, InfrastructureError):
        return error
    if isinstance(error, ToolStop):
        return Result((Text(said_by(error)),), "stopped")
    if isinstance(error, ToolError):
        return _failed("tool_error", remove_host_paths(said_by(error)))
    return _failed("tool_failed", remove_host_paths(explained(error), user_folders=True))


def _failed(outcome: Any, reason: str) -> Result:
    return Result((Text(f"error: {reason}"),), outcome)


def _short_name(name: Any) -> str:
    """The name of the tool a model asked for, which may be of any length, and of any kind."""
    return plain(shortened(name, _MOST_NAME_CHARACTERS)[0] if isinstance(name, str) else type(name).__name__)


def _name_of(holder: Any) -> str:
    return type(holder).__name__
