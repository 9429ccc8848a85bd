"""`ToolEnvironment`: a question, tools, and a final answer without a tool call.

The episode ends with the first action without a call, which is the answer. With a simulated user, such an action is a
message to the user, and the episode ends when the user ends the conversation. Calls that cannot be parsed or executed
return errors that the model reads; they never raise.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from whetstone.capabilities import implements_protocol
from whetstone.chat import Message, system, tool_result, user
from whetstone.environments.protocol import Observation, Reply, StepResult, User
from whetstone.environments.sandbox_grading import HasSession, ToolGrading
from whetstone.plugins import OptionError
from whetstone.provenance import Provenance
from whetstone.tools import Answer, Toolset
from whetstone.tools.protocol import GivesVerdict, ToolUnavailable, find_provenance, is_replayable
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.tools.thread_runner import call_user_function
from whetstone.tools.toolset import MIN_CLOSE_SECONDS
from whetstone.trajectory import Author, CallRecord, EndReason, Task
from whetstone.waiting import limit_duration, waiting_for


class ToolEnvironment:
    """Environment in which the agent solves a task with tools.

    Optionally, the task is a conversation with a simulated user.

    Ends: terminated on an action without a call, or with the user's last message; `tool_stopped` if a tool ends the
    episode; `malformed_action` on an unreadable call if `on_malformed` is `end`.

    Args:
        tools: Typed functions and classes of tools, created per episode; without tools the model answers directly.
        instruction: A system message for every task; none by default.
        max_calls_per_turn: Maximum number of calls of one action; if there are more, none is executed.
        tool_timeout_seconds: Timeout of one call in seconds.
        max_result_characters: Maximum characters of a tool result; longer results keep their head and tail.
        max_calls_per_second: Rate limit by the name of a tool, such as `{lookup_order: 5}`, shared by all episodes of
            the process.
        tool_attempts: Maximum number of attempts of a call whose backend fails (connection, timeout, HTTP 429 and 5xx);
            1: no retry.
        single_thread: Run the constructors and all plain functions of the tools in one thread of the process, one after
            another, such as for SQLite connections.
        on_malformed: `retry` shows the error to the model; `end` ends the episode.
        answer: Pattern that an answer must contain, such as `Answer:`; without a call or a match the model gets an
            error message and continues. Empty: any action without a call is an answer.
        user: User simulator, see `User`; without one the task's prompt is the question.
        grading: Reward by a command that runs in a separate sandbox with the files of the tools:
            `{command: …, tests: FOLDER}`; see `GradingOptions`.

    Raises:
        OptionError: If `answer` is not a valid regular expression, or is given with a user; or if `grading` is invalid,
            or no tool keeps files.
    """

    def __init__(
        self,
        *,
        tools: Sequence[Any] = (),
        instruction: str = "",
        max_calls_per_turn: int = 8,
        tool_timeout_seconds: float = 10.0,
        max_result_characters: int = 4000,
        max_calls_per_second: Mapping[str, float] | None = None,
        tool_attempts: int = 3,
        single_thread: bool = False,
        on_malformed: Literal["retry", "end"] = "retry",
        answer: str = "",
        user: Callable[[], User] | None = None,
        grading: Mapping[str, Any] | None = None,
    ) -> None:
        if answer and user is not None:
            raise OptionError(
                "answer", "cannot be combined with user: every action without a call is a message to the user"
            )
        try:
            self.answer = re.compile(answer)
        except re.error as error:
            raise OptionError("answer", f"{answer!r} is not a valid regular expression: {error}") from None
        self.toolset = Toolset(
            tools,
            timeout_seconds=tool_timeout_seconds,
            max_result_characters=max_result_characters,
            max_calls_per_second=max_calls_per_second,
            attempts=tool_attempts,
            single_thread=single_thread,
        )
        if grading is not None:
            tools_with_files = [each for each in self.toolset.holders if implements_protocol(each, HasSession)]
            if not tools_with_files:
                raise OptionError("grading", "there are no files to grade; add a tool with files, such as shell")
            if not tools_with_files[0].keeps_files:
                raise OptionError("grading", "there are no files to grade; set `persistence: persistent` of the tool")
            self.toolset.holders.append(ToolGrading(grading, tools_with_files[0].session_pool))
        self._offered = self.toolset.specs
        self._user_of, self._user = user, None if user is None else user()
        self.instruction, self.max_calls_per_turn, self.on_malformed = instruction, max_calls_per_turn, on_malformed
        self._actions = 0

    @property
    def stateless(self) -> bool:
        """Return whether the results of tools depend only on the calls.

        If so, an episode can continue from recorded turns. True if all tools are stateless and there is no simulated
        user.
        """
        return self.toolset.stateless and self._user_of is None

    @property
    def speaks(self) -> bool:
        """Return whether observations contain more than the task and results of functions."""
        return bool(self.toolset.holders) or self._user_of is not None

    @property
    def judges(self) -> bool:
        """Return whether a tool or the simulated user has a verdict on the episode."""
        return any(implements_protocol(each, GivesVerdict) for each in (*self.toolset.holders, self._user_of))

    @property
    def provenance(self) -> Provenance:
        """Return the provenance of the episodes.

        It is `imagined` if a model predicts the results of a tool.
        """
        return find_provenance(*self.toolset.holders)

    @property
    def replayable(self) -> bool:
        """Return whether a replay of the same calls leads to the same state."""
        return self.toolset.replayable and is_replayable(self._user_of)

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Open the tools and return the initial messages.

        These are the instruction, if any, and the prompt or the simulated user's first message.

        Args:
            task: Task of the episode; tools and user receive it.
            seed: Seed that the tools receive.
        """
        await self.toolset.open(task, seed=seed)
        self._actions = 0
        self._offered = self.toolset.specs
        request, author = task.opening, Author.ENVIRONMENT
        if self._user_of is not None:
            await self._user_leaves()
            assert self.toolset.episode is not None
            with waiting_for("the user (open)"):
                self._user = await call_user_function(self._user_of)
                reply: Reply = await call_user_function(self._user.open, self.toolset.episode)
            request, author = (user(reply.text),), Author.OTHER_AGENT
        opening = (system(self.instruction), *request) if self.instruction else request
        return Observation(opening, self._offered, tuple(self.toolset.declared.items()), author)

    async def step(self, action: Message) -> StepResult:
        """Execute the calls of an action concurrently and return their results in order.

        An action without a call ends the episode or goes to the simulated user. None of the calls is executed if one of
        them is malformed or there are more than `max_calls_per_turn`.

        Raises:
            InfrastructureError: If the backend of a tool failed.
        """
        self._actions += 1
        if not action.tool_calls and not action.malformed:
            if self._user is not None:
                with waiting_for("the user"):
                    reply = await call_user_function(self._user.answer, action.text)
                messages_of_user = (user(reply.text),) if reply.reason is None else ()
                observation = Observation(messages_of_user, author=Author.OTHER_AGENT)
                return StepResult(observation, terminated=reply.ended, reason=reply.reason)
            if not self.answer.search(action.text):
                return StepResult(Observation((user("That is neither a call nor an answer."),)))
            return StepResult(Observation(()), terminated=True)
        if action.malformed:
            # none of the calls is executed: the intended action as a whole is unknown
            records = tuple(CallRecord("", "malformed_call", 0.0) for _ in action.malformed)
            answers = tuple(tool_result(f"error: {sanitize_text(what)}") for what in action.malformed)
            ended = EndReason.MALFORMED_ACTION if self.on_malformed == "end" else None
            return StepResult(Observation(answers), reason=ended, calls=records)
        if len(action.tool_calls) > self.max_calls_per_turn:
            refusal = (
                f"error: {len(action.tool_calls)} calls in one turn, {self.max_calls_per_turn} allowed; none was made"
            )
            records = tuple(CallRecord(sanitize_text(call.name), "too_many_calls", 0.0) for call in action.tool_calls)
            return StepResult(Observation((tool_result(refusal),)), calls=records)
        results: list[Answer] = await asyncio.gather(*map(self.toolset.call, action.tool_calls))
        records = tuple(answer.record for answer in results)
        for answer in results:
            if answer.failure is not None:
                raise ToolUnavailable(str(answer.failure), records) from answer.failure
        await self.toolset.observe_turn(self._actions)
        messages = tuple(
            Message("tool", answer.content, tool_call_id=call.id)
            for call, answer in zip(action.tool_calls, results, strict=True)
        )
        offered = self.toolset.specs
        changed, self._offered = offered if offered != self._offered else (), offered
        stopped = any(record.outcome == "stopped" for record in records)
        ended = EndReason.TOOL_STOPPED if stopped else None
        return StepResult(Observation(messages, changed), reason=ended, calls=records)

    async def verdict(self) -> Mapping[str, Any]:
        """Return the merged verdicts of the tools and the user.

        Empty if neither has a verdict.
        """
        verdict = await self.toolset.verdict()
        if implements_protocol(self._user, GivesVerdict):
            with waiting_for("the user (verdict)"):
                verdict |= await call_user_function(self._user.verdict)
        return verdict

    async def close(self) -> None:
        """Close the simulated user, then the tools; called at the end of the episode."""
        try:
            await self._user_leaves()
        finally:
            await self.toolset.close()

    async def _user_leaves(self) -> None:
        leaving, self._user = self._user, None
        if leaving is not None:
            async with limit_duration(MIN_CLOSE_SECONDS, owner="the user (close)"):
                await call_user_function(leaving.close)
