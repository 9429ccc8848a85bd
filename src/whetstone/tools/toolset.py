"""Execution of tool calls: lookup, validation, execution within a deadline, and a result in every case.

Whatever a tool does (raise, hang, return a megabyte or escape sequences), the call returns short content and a
`CallRecord` with its outcome. Failures are attributed as follows:

    the model's        arguments that cannot be parsed, a tool that is not available, and `ToolError`: an impossible
                       request
    the tool's own     any other exception, `SystemExit` included, and a result that cannot be shown: `tool_failed` in
                       the record; the model reads it too, since its arguments may be the cause
    infrastructure's   a backend that fails in every attempt (`backend_failures.py`), and `InfrastructureError`, which a
                       tool raises if the call fails for any arguments: `Answer.failure`, and the episode ends

Deadlines: a call may take `timeout_seconds`, a close at least `MIN_CLOSE_SECONDS`; an open may take as long as the
episode. Plain functions run in threads at each of these stages (`thread_runner.py`), async ones in a separate task; one
that ignores its deadline is abandoned.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from whetstone.cancellation import is_cancellation_requested, is_second_interrupt
from whetstone.capabilities import implements_protocol
from whetstone.chat import Image, Text, ToolCall, ToolSpec
from whetstone.errors import (
    InfrastructureError,
    RecipeError,
    ToolError,
    WhetstoneError,
    did_you_mean,
    exception_text,
    summarize_exception,
)
from whetstone.masking import mask_secrets
from whetstone.sandbox.host_paths import remove_host_paths
from whetstone.tool_calls import RATE_LIMITED, TIMED_OUT
from whetstone.tools.backend_failures import BackendError, call_with_retries, get_pace
from whetstone.tools.execution import (
    attribute_failure,
    error_line,
    execute,
    failed_result,
    waiting_for_tool,
)
from whetstone.tools.protocol import (
    LIFETIME,
    DynamicTools,
    Episode,
    GivesVerdict,
    HasClose,
    HasCost,
    HasOpen,
    HasSemantics,
    ListsEveryTool,
    ObservesTurns,
    OffersTools,
    Priced,
    Result,
    SharedOptions,
    check_verdict,
    is_replayable,
    is_stateless,
)
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.tools.schema import Tool, tool_from_function
from whetstone.tools.side_effects import (
    CallPolicy,
    DeclaresEffects,
    Effect,
    declared_effect,
    describe_effects,
    describe_remedy,
)
from whetstone.tools.thread_runner import (
    call_in_single_thread,
    call_user_function,
    is_async,
    run_in_thread,
    turn_of_single_thread,
)
from whetstone.trajectory import CallRecord, Task
from whetstone.truncate_text import truncate_middle
from whetstone.user_code import describe_exception
from whetstone.waiting import DeadlinePassed, finish_within, limit_duration

_DEFAULT_CALLS = CallPolicy()
_MOST_IMAGES = 8
_MOST_NAME_CHARACTERS = 200
MIN_CLOSE_SECONDS = 10.0
"""Minimum time limit for closing a tool, in seconds; a longer limit of its calls applies instead."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a tool call as the model reads it, with its record."""

    content: tuple[Text | Image, ...]
    """Text and images that the model reads, sanitized and cut to the maximum length."""
    record: CallRecord
    """Record of the call for the trajectory: outcome, duration, cost and error."""
    failure: InfrastructureError | None = None
    """Failure of the infrastructure, which ends the episode; None in most cases."""

    @property
    def text(self) -> str:
        """Text parts of the content, concatenated."""
        return "".join(part.text for part in self.content if isinstance(part, Text))


class Toolset:
    """Tools of one episode: their lifetime, and the execution of calls.

    An environment creates one per episode; `open` starts it, and `close` ends it.

    Args:
        tools: Typed functions, sync or async, and classes whose methods are tools; see `protocol.py`. An object of each
            class is created here.
        timeout_seconds: Time limit of one call in seconds, unless the tool enforces its own.
        max_result_characters: Maximum length of a result; the middle of a longer one is cut.
        max_calls_per_second: Rate limit by the name of a tool, shared by all episodes of the process.
        attempts: Maximum number of attempts of a call whose backend fails (connection, timeout, HTTP 429 and 5xx).
        single_thread: Whether to run the constructors and all plain functions of the tools in one thread of the
            process, one after another: for SQLite connections and libraries that are not thread-safe.
        calls: Policy for tools with effects. The default calls no tool that declares `write` or `destructive`.

    Raises:
        RecipeError: If two tools share a name, a function cannot be a tool, or a rate limit is not above 0 or names no
            tool.
    """

    def __init__(
        self,
        tools: Iterable[Any],
        *,
        timeout_seconds: float = 10.0,
        max_result_characters: int = 4000,
        max_calls_per_second: Mapping[str, float] | None = None,
        attempts: int = 3,
        single_thread: bool = False,
        calls: CallPolicy = _DEFAULT_CALLS,
    ) -> None:
        self.timeout_seconds, self.max_result_characters, self.calls = timeout_seconds, max_result_characters, calls
        self.max_calls_per_second, self.attempts = dict(max_calls_per_second or {}), attempts
        self.single_thread = single_thread
        self.holders: list[Any] = []
        """Tool objects whose state lasts for an episode."""
        self.episode: Episode | None = None
        """Current episode; None before the first `open`."""
        self._opened = False
        self._alone: list[Tool] = []
        self._tools: dict[str, Tool] = {}
        for item in tools:
            if is_class(item):
                self.holders.append(
                    call_in_single_thread(create_holder, item) if single_thread else create_holder(item)
                )
            elif isinstance(item, Tool):
                self._alone.append(item)
            elif callable(item) and not holds_tools(item):
                self._alone.append(tool_from_function(item))
            elif holds_something(item):
                self.holders.append(item)
            else:
                raise RecipeError(f"{item!r} is not a tool: use a typed function, or a class with public methods")
        self._agree()
        self._list()
        if not self._changing():
            for holder in self.holders:
                for name in holder.prices if implements_protocol(holder, Priced) else ():
                    self._check_name("prices", name)
            for name in self.max_calls_per_second:
                self._check_name("max_calls_per_second", name)
        for name, rate in self.max_calls_per_second.items():
            if not rate > 0:
                raise RecipeError(f"max_calls_per_second: {name}: must be above 0, got {rate:g}")
        if attempts < 1:
            raise RecipeError(f"attempts: must be 1 or more, got {attempts}")

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """Declarations of the available tools, as the model receives them."""
        return tuple(tool.spec for tool in self._tools.values())

    @property
    def available_tools(self) -> Mapping[str, Tool]:
        """Available tools by name."""
        return self._tools

    @property
    def effects(self) -> dict[str, Effect | None]:
        """Effect of each tool by name, including tools that can become available; None: unknown."""
        later = [
            tool
            for holder in self.holders
            if implements_protocol(holder, ListsEveryTool)
            for tool in holder.every_tool()
        ]
        tools = {tool.spec.name: tool.effects for tool in later}
        tools |= {name: tool.effects for name, tool in self._tools.items()}
        return {name: self.calls.effect_of(name, declared) for name, declared in tools.items()}

    @property
    def changing(self) -> bool:
        """Whether the set of tools can change during an episode."""
        return self._changing()

    @property
    def has_unlisted_tools(self) -> bool:
        """Whether a tool object, such as an MCP server, lists its tools only after `open`."""
        return any(
            implements_protocol(holder, DynamicTools) and holder.changing and not list_object_tools(holder)
            for holder in self.holders
        )

    async def list_effects(self) -> dict[str, Effect | None]:
        """List the tools of changing sources, such as an MCP server, and return the effects of all tools.

        The sources are opened for this. Afterwards, `specs` contains their tools, too.

        Raises:
            InfrastructureError: If a server does not respond.
        """
        changing = [holder for holder in self.holders if implements_protocol(holder, DynamicTools) and holder.changing]
        try:
            for holder in changing:
                if implements_protocol(holder, HasOpen):
                    await self._call_plainly(holder.open, Episode(Task("effects", ""), 0))
            await self._list_again()
            return self.effects
        finally:
            for holder in changing:
                if implements_protocol(holder, HasClose):
                    await call_user_function(holder.close)

    @property
    def stateless(self) -> bool:
        """Whether the response to a call depends only on the call, for all tools."""
        return all(is_stateless(holder) for holder in self.holders)

    @property
    def replayable(self) -> bool:
        """Whether the same calls lead to the same state, for all tools."""
        return all(is_replayable(holder) for holder in self.holders)

    @property
    def declared(self) -> dict[str, str]:
        """Behavior of tools that a policy adapts to, by name; see `HasSemantics`."""
        declarations = [holder.declared for holder in self.holders if implements_protocol(holder, HasSemantics)]
        return {name: behavior for declared in declarations for name, behavior in declared.items()}

    async def open(self, task: Task, *, seed: int) -> None:
        """Start an episode: open every tool object. An episode that is still open is closed first.

        Args:
            task: Task of the episode.
            seed: Seed for all randomness of the tools.

        Raises:
            InfrastructureError: If a resource that a tool requires is not available.
        """
        if self._opened:
            await self.close()
        self._opened = True
        episode = self.episode = Episode(task, seed, {"toolset": self})
        for holder in self.holders:
            if implements_protocol(holder, HasOpen):
                with waiting_for_tool(f"tool {_class_name(holder)} (open)"):
                    await self._call_plainly(holder.open, episode)
        await self._list_again()

    async def close(self) -> None:
        """Close every tool object, the last opened first.

        One that fails or hangs does not keep the others open.

        Raises:
            BaseException: The first failure; `DeadlinePassed` if a tool was not closed in time.
        """
        self._opened = False
        failures: list[BaseException] = []
        for holder in reversed(self.holders):
            if implements_protocol(holder, HasClose):
                seconds = max(self.timeout_seconds, MIN_CLOSE_SECONDS)
                closing = self._call_plainly(holder.close)
                try:
                    async with limit_duration(seconds, owner=f"tool {_class_name(holder)} (close)"):
                        await closing
                except BaseException as error:  # a cancellation, too: the other tools are closed first
                    failures.append(error)
        if failures:
            raise failures[0]

    async def call(self, call: ToolCall) -> Answer:
        """Execute one call and return its result, even if the tool fails.

        It raises only if the caller is cancelled.
        """
        try:
            return await self._call(call)
        except (
            BaseException
        ) as error:  # from code around a tool: its prices, its parser of arguments, its list of tools
            if is_cancellation_requested() or is_second_interrupt(error):
                raise
            return self._answer(call, attribute_failure(error))

    async def _call(self, call: ToolCall) -> Answer:
        if not isinstance(call.name, str) or not isinstance(call.arguments, str):
            return self._answer(
                call, failed_result("invalid_arguments", "a call has a name and arguments, both of them texts")
            )
        tool = self._tools.get(call.name)
        if tool is None:
            name = _short_name(call.name)
            return self._answer(
                call, failed_result("unknown_tool", f'there is no tool "{name}"{did_you_mean(name, self._tools)}')
            )
        try:
            if tool.binds_slowly:
                arguments = await run_in_thread(tool.bind, call.arguments)
            else:
                arguments = tool.bind(call.arguments)
        except ToolError as error:
            return self._answer(call, failed_result("invalid_arguments", exception_text(error)))
        effect = self.calls.effect_of(call.name, tool.effects)
        if not self.calls.permits(call.name, effect):
            refused = {call.name: effect}
            reason = f"not called: {describe_effects(refused)}; {describe_remedy(refused)}"
            return self._answer(call, failed_result("not_called", reason))
        cost = 0.0
        for holder in self.holders:
            if implements_protocol(holder, HasCost):
                reason, price = holder.charge(call.name)
                cost += price
                if reason:
                    return self._answer(call, failed_result("budget_exhausted", reason))
        started = time.perf_counter()
        result = await self._run(tool, arguments)
        seconds = time.perf_counter() - started
        if self._changing():
            await self._list_again()
        return self._answer(call, result, seconds=seconds, cost=cost)

    async def observe_turn(self, number: int) -> None:
        """Let the tool objects that observe turns look at their state after an action.

        Args:
            number: Number of the action in the episode, from 1.
        """
        for holder in self.holders:
            if implements_protocol(holder, ObservesTurns):
                with waiting_for_tool(f"tool {_class_name(holder)} (observe_turn)"):
                    await self._call_plainly(holder.observe_turn, number)

    async def verdict(self) -> dict[str, Any]:
        """Return the merged verdict of all tool objects that judge the episode.

        `success` is true if all report success, and `score` is the lowest score.
        """
        merged: dict[str, Any] = {}
        for holder in self.holders:
            if implements_protocol(holder, GivesVerdict):
                with waiting_for_tool(f"tool {_class_name(holder)} (verdict)"):
                    verdict = await self._call_plainly(holder.verdict)
                    one = dict(check_verdict(verdict, f"{_class_name(holder)}.verdict()"))
                for name, least in (("success", min), ("score", min)):
                    if name in merged and name in one:
                        one[name] = least(merged[name], one[name])
                merged |= one
        return merged

    async def _call_plainly(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of a tool object, in the single thread if the toolset is restricted to it."""
        async with turn_of_single_thread(self.single_thread and not is_async(function)):
            return await call_user_function(function, *arguments)

    def _check_name(self, key: str, name: str) -> None:
        if name not in self._tools:
            raise RecipeError(f'{key}: there is no tool "{name}"{did_you_mean(name, self._tools)}')

    def _changing(self) -> bool:
        return any(implements_protocol(holder, DynamicTools) and holder.changing for holder in self.holders)

    def _agree(self) -> None:
        """Check that tool objects which share a sandbox have equal options.

        Raises:
            RecipeError: If an option differs; the message names it.
        """
        known: dict[str, tuple[Any, str]] = {}
        for holder in self.holders:
            name = type(holder).__name__.lower()
            for option, value in (holder.must_agree if implements_protocol(holder, SharedOptions) else {}).items():
                other, whose = known.setdefault(option, (value, name))
                if other != value:
                    raise RecipeError(
                        f"{whose} and {name} share a sandbox and must have the same `{option}`, got {other} and {value}"
                    )

    def _list(self) -> None:
        """Update the list of available tools.

        Raises:
            RecipeError: If two tools share a name.
        """
        tools: dict[str, Tool] = {}
        for tool in (*self._alone, *(tool for holder in self.holders for tool in list_object_tools(holder))):
            if tool.spec.name in tools:
                remedy = "rename one of them (set __name__ of a functools.partial)"
                raise RecipeError(f'two tools are named "{tool.spec.name}"; {remedy}')
            tools[tool.spec.name] = tool
        self._tools = tools

    async def _list_again(self) -> None:
        """Update the list of available tools, in a thread because `tools` is a plain function of a user."""
        if any(implements_protocol(holder, OffersTools) for holder in self.holders):
            await self._call_plainly(self._list)

    async def _run(self, tool: Tool, arguments: dict[str, Any]) -> Result:
        """Run a call, again if the backend of the tool fails.

        Attribute the failure after the last attempt.
        """
        name = tool.spec.name
        pace = get_pace(name)
        num_answered, started = pace.num_answered, time.monotonic()
        try:
            result = await call_with_retries(
                functools.partial(self._run_once, tool, arguments),
                pace=pace,
                calls_per_second=self.max_calls_per_second.get(name),
                attempts=self.attempts,
                effects=self.calls.effect_of(name, tool.effects),
            )
        except BackendError as error:
            if error.blame is not None:
                return attribute_failure(await error.blame())
            if error.was_sent and pace.num_answered > num_answered:  # the backend answers other calls
                return failed_result("tool_failed", remove_host_paths(str(error), user_folders=True))
            seconds = time.monotonic() - started
            limit = f"{RATE_LIMITED}={{{name}: N}} below the limit of its backend: " if error.is_rate_limited else ""
            text = f"{name}: {limit}{error} (after {seconds:.1f} s of attempts)"
            return attribute_failure(InfrastructureError(text))
        pace.num_answered += result.outcome == "ok"
        return result

    async def _run_once(self, tool: Tool, arguments: dict[str, Any]) -> Result:
        seconds = None if tool.keeps_time else self.timeout_seconds
        async with turn_of_single_thread(self.single_thread and not is_async(tool.function)):
            try:
                return await finish_within(seconds, execute(tool, arguments), owner=tool.spec.name)
            except DeadlinePassed:
                return failed_result("timeout", f"{tool.spec.name} {TIMED_OUT} {self.timeout_seconds:g} s")

    def _answer(self, call: ToolCall, result: Result, *, seconds: float = 0.0, cost: float = 0.0) -> Answer:
        """Return the result of a call in the form in which it is shown and recorded."""
        failure = result.failure
        try:
            content, truncated = self._sanitize(result.content)
        except Exception as error:  # a tool made the result, and may have put anything into it
            why = remove_host_paths(summarize_exception(error), user_folders=True)
            result = failed_result("tool_failed", f"what the tool returned cannot be shown: {why}")
            content, truncated = self._sanitize(result.content)
        name = _short_name(call.name)
        line = error_line(result, content).removeprefix(f"{name}: ")
        record = CallRecord(name, result.outcome, seconds, truncated, cost, line, result.inner)
        return Answer(content, record, failure)

    def _sanitize(self, content: tuple[Text | Image, ...]) -> tuple[tuple[Text | Image, ...], bool]:
        """Return (sanitized content, whether it was cut to the maximum number of characters or images)."""
        parts: list[Text | Image] = []
        room, truncated, images = self.max_result_characters, False, 0
        for part in content:
            if isinstance(part, Image):
                images += 1
                if images <= _MOST_IMAGES:
                    parts.append(part)
                truncated = truncated or images > _MOST_IMAGES
                continue
            text, cut = truncate_middle(sanitize_text(mask_secrets(part.text)), room)
            parts.append(replace(part, text=text))
            room, truncated = max(room - len(text), 0), truncated or cut
        return tuple(parts), truncated


def _short_name(name: Any) -> str:
    """Return the name of the called tool, sanitized and cut.

    A model may send any type and length.
    """
    return sanitize_text(
        truncate_middle(name, _MOST_NAME_CHARACTERS)[0] if isinstance(name, str) else type(name).__name__
    )


def _class_name(holder: Any) -> str:
    return type(holder).__name__


# objects that hold tools


def list_object_tools(holder: Any) -> list[Tool]:
    """Return the tools of an object: those that its method `tools` returns, otherwise its public methods.

    Raises:
        RecipeError: If a method cannot be a tool, or `effects` names a tool that does not exist.
    """
    if implements_protocol(holder, OffersTools):
        offered = [tool if isinstance(tool, Tool) else tool_from_function(tool) for tool in holder.tools()]
        return [_with_effects(tool, holder) for tool in offered]
    names = dict.fromkeys(name for kind in reversed(type(holder).__mro__) for name in vars(kind))  # as they are written
    names = {name: None for name in names if not name.startswith("_") and name not in LIFETIME}
    methods = {name: getattr(holder, name) for name in names if not _is_property(holder, name)}
    tools = [tool_from_function(method, name) for name, method in methods.items() if _is_method(method)]
    if implements_protocol(holder, DeclaresEffects) and isinstance(holder.effects, Mapping):
        known = {tool.spec.name for tool in tools}
        for name in holder.effects.keys() - known:
            raise RecipeError(f'{type(holder).__name__}.effects: there is no tool "{name}"{did_you_mean(name, known)}')
    return [_with_effects(tool, holder) for tool in tools]


def _with_effects(tool: Tool, holder: Any) -> Tool:
    """Return a tool with the effect that the tool or its class declares."""
    declared = tool.effects or declared_effect(holder, tool.spec.name)
    return tool if declared == tool.effects else replace(tool, effects=declared)


def _is_property(holder: Any, name: str) -> bool:
    return isinstance(inspect.getattr_static(holder, name), property | functools.cached_property)


def _is_method(value: Any) -> bool:
    """Return whether an attribute is a method.

    Static methods, class methods and partials count.
    """
    return inspect.ismethod(value) or inspect.isfunction(value) or isinstance(value, functools.partial)


def create_holder(item: Any) -> Any:
    """Create the object of a tool class.

    Args:
        item: Class, or a partial of a class with its options.

    Raises:
        RecipeError: If the object cannot be created, or has no tools.
    """
    kind = item.func if isinstance(item, functools.partial) else item
    try:
        holder = item()
    except (WhetstoneError, InfrastructureError):
        raise
    except (Exception, SystemExit) as error:
        raise RecipeError(f'tool "{kind.__name__}" cannot be created: {describe_exception(error)}') from error
    if not holds_something(holder):
        raise RecipeError(
            f'tool "{kind.__name__}" has no public method that a model could call; add one with typed parameters'
        )
    return holder


def holds_something(item: Any) -> bool:
    """Return whether an object has tools, or takes part in the calls of other tools, such as a budget."""
    if inspect.isroutine(item) or isinstance(item, str | bytes | int | float | list | tuple | dict | set):
        return False
    return any(hasattr(item, name) for name in LIFETIME) or bool(list_object_tools(item))


def is_class(item: Any) -> bool:
    """Return whether an item of a toolset is a class, or a partial of one."""
    return inspect.isclass(item.func if isinstance(item, functools.partial) else item)


def holds_tools(item: Any) -> bool:
    """Return whether an item of a toolset is an object with a method `tools` or `open`."""
    return not inspect.isroutine(item) and (
        implements_protocol(item, OffersTools) or implements_protocol(item, HasOpen)
    )
