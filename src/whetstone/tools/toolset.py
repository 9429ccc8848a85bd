"""How is a tool call executed? Looked up, checked, run within a deadline, and answered, always.

Whatever a tool does (raise, hang, return a megabyte, speak in escape sequences), the call comes back as short content
and a `CallRecord` that says what happened. Whose a failure is:

    the model's        what cannot be read or is not on offer, and `ToolError`: it asked for something impossible
    the tool's own     any other exception, `SystemExit` and the like among them, and a result that cannot be shown:
                       `tool_failed` in the record; the model reads it too, since its arguments may have led there
    infrastructure's   a backend that fails in every attempt (`backend_failures.py`), and `InfrastructureError`, which a
                       tool raises if the call fails for any arguments: `Answer.failure`, and the episode ends

Deadlines: a call may take `timeout_seconds`, a close at least `MIN_CLOSE_SECONDS`; an open may take as long as the
episode. Plain functions run in threads at each of these stages (`threads.py`), async ones in a separate task; one that
ignores its deadline is abandoned.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from whetstone.chat import Image, Text, ToolCall, ToolSpec
from whetstone.contracts import fulfils
from whetstone.errors import (
    InfrastructureError,
    RecipeError,
    ToolError,
    did_you_mean,
    explained,
    said_by,
)
from whetstone.masking import mask_secrets
from whetstone.sandbox.host_paths import remove_host_paths
from whetstone.shortening import shortened
from whetstone.stopping import asked_to_stop, pressed
from whetstone.tools.backend_failures import BackendError, call_with_retries, pace_of
from whetstone.tools.execution import (
    attribute_failure,
    error_line,
    execute,
    failed_result,
    waiting_for_tool,
)
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
from whetstone.tools.threads import (
    call_in_single_thread,
    call_user_function,
    is_async,
    run_in_thread,
    turn_of_single_thread,
)
from whetstone.tools.tool_classes import create_holder, holds_something, holds_tools, is_class, tools_of
from whetstone.trajectory import CallRecord, Task
from whetstone.waiting import DeadlinePassed, deadline, finish_within

_DEFAULT_CALLS = CallPolicy()
_MOST_IMAGES = 8
_MOST_NAME_CHARACTERS = 200
MIN_CLOSE_SECONDS = 10.0
"""Closing a tool may take this long, and as long as one of its calls."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a call as the model reads it, and its record."""

    content: tuple[Text | Image, ...]
    record: CallRecord
    failure: InfrastructureError | None = None
    """See `Result.failure`."""

    @property
    def text(self) -> str:
        """The text of the content."""
        return "".join(part.text for part in self.content if isinstance(part, Text))


class Toolset:
    """The tools on offer in an episode.

    Args:
        tools: Typed functions, sync or async, and classes whose methods are tools; see `protocol.py`. Of a class an
            object is made here, and it is open from `open` to `close`.
        timeout_seconds: How long one call may run, where the tool does not see to it itself.
        max_result_characters: Longer results keep their head and tail.
        max_calls_per_second: Rate limit by the name of a tool, shared by all episodes of the process.
        attempts: Maximum number of attempts of a call whose backend fails (connection, timeout, HTTP 429 and 5xx).
        single_thread: Run the constructors and all plain functions of the tools in one thread of the process, one
            after another: for SQLite connections and libraries that are not thread-safe.
        calls: Which tools are called. The default calls no tool that declares the effect `write` or `destructive`.

    Raises:
        RecipeError: Two tools share a name, a function cannot be a tool, or a rate limit is not above 0 or is of no
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
        """What keeps something for the length of an episode."""
        self.episode: Episode | None = None
        """The one under way."""
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
                raise RecipeError(f"{item!r} is no tool: a tool is a typed function, or a class with public methods")
        self._agree()
        self._list()
        if not self._changing():
            for holder in self.holders:
                for name in holder.prices if fulfils(holder, Priced) else ():
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
                    await self._call_plainly(holder.open, Episode(Task("effects", ""), 0))
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
                with waiting_for_tool(f"tool {_name_of(holder)} (open)"):
                    await self._call_plainly(holder.open, episode)
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
                closing = self._call_plainly(holder.close)
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
            return self._answer(call, attribute_failure(error))

    async def _called(self, call: ToolCall) -> Answer:
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
            return self._answer(call, failed_result("invalid_arguments", said_by(error)))
        effect = self.calls.effect_of(call.name, tool.effects)
        if not self.calls.permits(call.name, effect):
            refused = {call.name: effect}
            reason = f"not called: {describe_effects(refused)}; {describe_remedy(refused)}"
            return self._answer(call, failed_result("not_called", reason))
        cost = 0.0
        for holder in self.holders:
            if fulfils(holder, Charges):
                said, price = holder.charge(call.name)
                cost += price
                if said:
                    return self._answer(call, failed_result("budget_exhausted", said))
        started = time.perf_counter()
        result = await self._run(tool, arguments)
        seconds = time.perf_counter() - started
        if self._changing():
            await self._list_again()
        return self._answer(call, result, seconds=seconds, cost=cost)

    async def verdict(self) -> dict[str, Any]:
        """What became of what tools hold; a success where all of them call it one, and the least of their scores."""
        said: dict[str, Any] = {}
        for holder in self.holders:
            if fulfils(holder, GivesVerdict):
                with waiting_for_tool(f"tool {_name_of(holder)} (verdict)"):
                    one = dict(await self._call_plainly(holder.verdict))
                for name, least in (("success", min), ("score", min)):
                    if name in said and name in one:
                        one[name] = least(said[name], one[name])
                said |= one
        return said

    async def _call_plainly(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of a tool, in the single thread if the toolset is restricted to it."""
        async with turn_of_single_thread(self.single_thread and not is_async(function)):
            return await call_user_function(function, *arguments)

    def _check_name(self, key: str, name: str) -> None:
        if name not in self._tools:
            raise RecipeError(f'{key}: there is no tool "{name}"{did_you_mean(name, self._tools)}')

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
            await self._call_plainly(self._list)

    async def _run(self, tool: Tool, arguments: dict[str, Any]) -> Result:
        """Call a tool, again if its backend fails; decide whose failure it is after the last attempt."""
        name = tool.spec.name
        pace = pace_of(name)
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
            return attribute_failure(InfrastructureError(f"{name}: {error} (after {seconds:.1f} s of attempts)"))
        pace.num_answered += result.outcome == "ok"
        return result

    async def _run_once(self, tool: Tool, arguments: dict[str, Any]) -> Result:
        seconds = None if tool.keeps_time else self.timeout_seconds
        async with turn_of_single_thread(self.single_thread and not is_async(tool.function)):
            try:
                return await finish_within(seconds, execute(tool, arguments), owner=tool.spec.name)
            except DeadlinePassed:
                return failed_result("timeout", f"{tool.spec.name} did not answer within {self.timeout_seconds:g} s")

    def _answer(self, call: ToolCall, result: Result, *, seconds: float = 0.0, cost: float = 0.0) -> Answer:
        """Return the result of a call as it is shown and recorded."""
        failure = result.failure
        try:
            content, truncated = self._within(result.content)
        except Exception as error:  # a tool made the result, and may have put anything into it
            why = remove_host_paths(explained(error), user_folders=True)
            result = failed_result("tool_failed", f"what the tool returned cannot be shown: {why}")
            content, truncated = self._within(result.content)
        name = _short_name(call.name)
        line = error_line(result, content).removeprefix(f"{name}: ")
        record = CallRecord(name, result.outcome, seconds, truncated, cost, line)
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


def _short_name(name: Any) -> str:
    """The name of the tool a model asked for, which may be of any length, and of any kind."""
    return plain(shortened(name, _MOST_NAME_CHARACTERS)[0] if isinstance(name, str) else type(name).__name__)


def _name_of(holder: Any) -> str:
    return type(holder).__name__
