"""An agent of somebody else's as an environment: it runs, asks its model at an address, and this policy answers.

    reset   the agent starts, with OPENAI_BASE_URL of this episode (or Anthropic's); its first request is the opening
    step    the action is the answer to its request; its next request is the observation, its end the episode's

So its conversation is an episode like any other: sampled, trained, forked, compared. Not a line of the agent knows of
Whetstone. What it draws with (temperature, seed) is the recipe's affair, not the client's.

Easy to get wrong: an agent with sub-agents asks for several conversations in turn. Each request extends the longest
conversation that it begins with, so every conversation keeps its sampled tokens; an agent that rewrites its history
begins a new one. And one that hangs, crashes or asks nothing must not hold the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import shlex
import signal
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whetstone.chat import Message, ToolSpec
from whetstone.chat.api.asked import Answer, Asked, RefusedError, told, words
from whetstone.chat.api.fields import finite
from whetstone.environments.agent_server import MODEL, AgentServer
from whetstone.environments.dependencies import package
from whetstone.environments.hosting.workers import same_hashes
from whetstone.environments.protocol import Observation, StepResult
from whetstone.errors import EpisodeError, InfrastructureError, RecipeError, TaskError
from whetstone.plain_json import plain
from whetstone.plugins import find_part
from whetstone.sandbox import Limits, enclosed
from whetstone.tools.side_effects import Effect, declared_effect
from whetstone.tools.threads import call_user_function
from whetstone.trajectory import EndReason, Task
from whetstone.user_code import describe_exception

_MOST_OUTPUT = 1 << 16
"""Bytes of what a command prints that are kept, its end."""
_MOST_LINGERING = 1.0
"""Seconds."""
_STARTING_SECONDS = 1.0
"""Time after its start until an agent no longer counts as starting."""
_KEY = "none"
_LIMITS = Limits(memory_mb=2048, processes=128)


class Agent:
    """One run of an agent. Ends: terminated when it ends; by its deadline as any episode.

    Args:
        command: What to run, with `{task}` for the task's prompt and `{id}` for its name; or
        function: `package.module:name`, called with what of `task`, `id`, `base_url`, `anthropic_base_url`, `api_key`
            and `model` it has parameters for; async, or plain in a thread of its own.
        folder: Where a command runs; empty: here.
        variables: Of a command's environment, beside `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `OPENAI_MODEL`, and the
            same of `ANTHROPIC`.
        crash: What becomes of an episode whose agent ends with an error: `outcome`: it ended, and the reward judges
            what was said; `error`: nothing can be said of it.
        sandbox: Whether a command runs as foreign code does, behind namespaces: it reads this Python, the system's
            programs, `folder` and `readable`, writes to its home alone, and reaches its model and nothing else.
        readable: Folders it may read there besides, such as the environment its program is installed in.
        limits: What it may use there, of which time and output are the episode's; 2 GiB for each process by default.

    Raises:
        RecipeError: Neither or both of `command` and `function`, a function that is not there, or one to be confined.
    """

    needs = (package("starlette", "serve"), package("uvicorn", "serve"))

    def __init__(
        self,
        *,
        command: str | Sequence[str] = (),
        function: str | Callable[..., Any] = "",
        folder: str = "",
        variables: Mapping[str, str] | None = None,
        crash: str = "outcome",
        sandbox: bool = False,
        readable: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> None:
        if bool(command) == bool(function):
            raise RecipeError("environment agent: either a command or a function")
        if crash not in ("outcome", "error"):
            raise RecipeError(f'environment agent: crash is "outcome" or "error", got "{crash}"')
        if sandbox and not command:
            raise RecipeError("environment agent: a function runs in this process; only a command can be in a sandbox")
        if not sandbox and (readable or limits):
            raise RecipeError("environment agent: readable and limits are for `sandbox: true`")
        self._command = shlex.split(command) if isinstance(command, str) else list(command)
        self._function = find_part("agent", function, {}) if isinstance(function, str) and function else function
        self._folder, self._variables, self._crash = folder, dict(variables or {}), crash
        self._sandbox, self._readable, self._limits = sandbox, tuple(readable), limits or _LIMITS
        self._id = uuid.uuid4().hex
        self._requests: asyncio.Queue[_Request | None] = asyncio.Queue()
        self._pending: _Request | None = None
        self._conversations: list[_Conversation] = []
        self._current = 0
        """Index of the conversation whose request is pending."""
        self._running: asyncio.Task[None] | None = None
        self._server: AgentServer | None = None
        self.final: dict[str, Any] = {}
        """What is known of how it ended."""

    @property
    def effects(self) -> Effect | None:
        """Effect that the function declares; unknown for a command."""
        return declared_effect(self._function)

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """See `Environment`.

        Raises:
            EpisodeError: The agent ended without a request.
        """
        self._server = await AgentServer.for_loop()
        self._server.agents[self._id] = self
        url = f"{self._server.url}/episodes/{self._id}/v1"
        first = asyncio.ensure_future(self._requests.get())
        try:
            async with self._server.starting:
                self._running = asyncio.ensure_future(self._run(task, url))
                self._running.add_done_callback(lambda _: self._requests.put_nowait(None))
                await asyncio.wait({first}, timeout=_STARTING_SECONDS)
            self._pending = await first
        finally:
            first.cancel()
        if self._pending is None:
            self._raise_ours()
            raise EpisodeError(f"the agent asked its model nothing; it ended by {self._ending()}")
        return self._observe(self._pending)

    async def step(self, action: Message) -> StepResult:
        """See `Environment`.

        Raises:
            EpisodeError: The agent crashed, where that says nothing of the policy (`crash: error`).
        """
        assert self._pending is not None
        thought, said = told(action)
        self._pending.answer.set_result(Answer(said, thought, finish="tool_calls" if said.tool_calls else "stop"))
        self._conversations[self._current].known.append(words(said))
        self._pending = await self._requests.get()
        if self._pending is None:
            self._raise_ours()
            if self._crash == "error" and self.final.get("failed"):
                raise EpisodeError(f"it ended by {self._ending()}")
            return StepResult(Observation(()), reason=EndReason.TERMINATED, terminated=True)
        return StepResult(self._observe(self._pending))

    def _observe(self, request: _Request) -> Observation:
        """Return what is new in a request, in the longest conversation that it extends or in a new one."""
        asked = request.asked
        heard = [words(message) for message in asked.messages]
        extended = [
            (len(each.known), number)
            for number, each in enumerate(self._conversations)
            if each.tools == asked.tools
            and each.agent == request.agent
            and heard[: len(each.known)] == each.known
            and len(heard) > len(each.known)
            and all(message.role != "assistant" for message in asked.messages[len(each.known) :])
        ]
        length, number = max(extended, default=(0, len(self._conversations)))
        if not extended:
            self._conversations.append(_Conversation(asked.tools, request.agent))
        self._conversations[number].known = heard
        self._current = number
        return Observation(asked.messages[length:], asked.tools, conversation=number, agent=request.agent)

    def verdict(self) -> Mapping[str, Any]:
        """What the agent returned or printed last (`answer`), how it ended (`exit`), and what somebody paid it.

        One that fell over before anybody did was no success.
        """
        fell = {"success": False, "score": 0.0} if self.final.get("failed") else {}
        return {**fell, **self.final}

    async def close(self) -> None:
        """See `Environment`."""
        if self._server is not None:
            self._server.agents.pop(self._id, None)
            self._server.responses.forget(self._id)
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._running
        while self._pending is not None or not self._requests.empty():
            if self._pending is not None and not self._pending.answer.done():
                self._pending.answer.set_exception(RefusedError("the episode is over", status=409, code="episode_over"))
                self._pending.answer.exception()
            self._pending = None if self._requests.empty() else self._requests.get_nowait()

    async def ask(self, asked: Asked, agent: str = "") -> Answer:
        """Return the policy's answer to a request.

        Args:
            agent: Name of the agent that asks.
        """
        request = _Request(asked, agent)
        self._requests.put_nowait(request)
        return await request.answer

    def pay(self, body: Mapping[str, Any]) -> None:
        """Somebody says what the episode was worth.

        Raises:
            RefusedError: It is no number, or more is said than there is here.
        """
        if unknown := sorted(set(body) - {"reward", "success"}):
            raise RefusedError(f"{unknown[0]}: in training there are reward, success", param=unknown[0])
        worth = finite(body.get("reward"), "reward")
        self.final |= {"score": worth, "success": bool(body.get("success", worth >= 1))}

    async def _run(self, task: Task, url: str) -> None:
        if self._command:
            await self._run_command(task)
            return
        given: dict[str, Any] = {"task": task.prompt, "id": task.id, "base_url": url, "api_key": _KEY, "model": MODEL}
        given["messages"] = [message.to_openai() for message in task.opening]
        given["anthropic_base_url"] = url.removesuffix("/v1")  # its client adds that itself
        function: Any = self._function
        taken = inspect.signature(function).parameters
        every = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values())
        arguments = given if every else {name: value for name, value in given.items() if name in taken}
        try:
            returned = await call_user_function(function, **arguments)
        except (InfrastructureError, TaskError):
            raise
        except Exception as error:  # whatever else somebody's agent raises is how it ended
            self.final |= {"failed": describe_exception(error)[:500]}
            return
        if isinstance(returned, Mapping):
            self.final |= plain(dict(returned))
        elif isinstance(returned, bool | int | float):
            self.final |= {"score": float(returned), "success": returned >= 1}
        elif returned is not None:
            self.final |= {"answer": str(returned)[-_MOST_OUTPUT:]}

    async def _run_command(self, task: Task) -> None:
        argv = [part.replace("{task}", task.prompt).replace("{id}", task.id) for part in self._command]
        assert self._server is not None
        async with contextlib.AsyncExitStack() as stack:
            if self._sandbox:
                base = f"http://127.0.0.1:{enclosed.PORT}/episodes/{self._id}"
                inside = await enclosed.start(
                    argv,
                    folder=self._folder,
                    variables={**_told(base), **self._variables},
                    limits=self._limits,
                    also_readable=self._readable,
                )
                process = inside.process
                stack.push_async_callback(_end, process)
                stack.callback((await self._server.stand_behind(inside.door)).close)
                inside.begin()
            else:
                variables = {**same_hashes(), **_told(f"{self._server.url}/episodes/{self._id}"), **self._variables}
                process = await _start(argv, self._folder, variables)
                stack.push_async_callback(_end, process)
            assert process.stdout is not None
            assert process.stderr is not None
            printed, complained = await asyncio.gather(_tail(process.stdout), _tail(process.stderr))
            code = await process.wait()
        last = printed.strip().rpartition("\n")[2]
        self.final = {"answer": last, "exit": code} | self.final
        if code:
            self.final["failed"] = f"exit status {code}: {complained.strip().rpartition(chr(10))[2]}"[:500]

    def _ending(self) -> str:
        return str(self.final.get("failed", "itself"))

    def _raise_ours(self) -> None:
        """What failed here rather than in the agent, if it did: nothing can be said of the episode then."""
        error = None if self._running is None or self._running.cancelled() else self._running.exception()
        if error is not None:
            raise error


class _Request:
    """What an agent waits for."""

    def __init__(self, asked: Asked, agent: str) -> None:
        self.asked, self.agent = asked, agent
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class _Conversation:
    """A conversation of an agent with its model."""

    tools: tuple[ToolSpec, ...]
    agent: str
    known: list[list[object]] = field(default_factory=list)
    """Everything said in it, as the agent knows it."""


def _told(base: str) -> dict[str, str]:
    """Where a command asks, in the words of both clients; Anthropic's adds /v1 itself."""
    openai = {"BASE_URL": f"{base}/v1", "API_BASE": f"{base}/v1", "API_KEY": _KEY, "MODEL": MODEL}
    anthropic = {"BASE_URL": base, "API_KEY": _KEY, "MODEL": MODEL}
    told = {"OPENAI": openai, "ANTHROPIC": anthropic}
    return {f"{who}_{name}": value for who, said in told.items() for name, value in said.items()}


async def _start(argv: Sequence[str], folder: str, variables: Mapping[str, str]) -> asyncio.subprocess.Process:
    """Start a command with its output in pipes, in a process group that `_end` can stop.

    Raises:
        RecipeError: If the program cannot be executed.
    """
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            cwd=folder or None,
            env=variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise RecipeError(f"environment agent: {argv[0]}: {error.strerror or error}") from None


async def _end(process: asyncio.subprocess.Process) -> None:
    """With all it started, and wait for it: what nobody waits for outlives the loop that started it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    with contextlib.suppress(TimeoutError):  # what got away from it may hold its output open
        async with asyncio.timeout(_MOST_LINGERING):
            await process.communicate()


async def _tail(stream: asyncio.StreamReader) -> str:
    """The end of all that is printed."""
    kept = b""
    while more := await stream.read(_MOST_OUTPUT):
        kept = (kept + more)[-_MOST_OUTPUT:]
    return kept.decode(errors="replace")
