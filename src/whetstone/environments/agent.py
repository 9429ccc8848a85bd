"""An agent of somebody else's as an environment: it runs, asks its model at an address, and this policy answers.

    reset   the agent starts, with OPENAI_BASE_URL of this episode (or Anthropic's); its first request is the opening
    step    the action is the answer to its request; its next request is the observation, its end the episode's

So its conversation is an episode like any other: sampled, trained, forked, compared. Not a line of the agent knows of
Whetstone. What it draws with (temperature, seed) is the recipe's affair, not the client's.

Easy to get wrong: an agent that writes its history anew, or speaks of several things in turn, goes on in a segment of
its own; and one that hangs, crashes or asks nothing must not hold the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import os
import shlex
import signal
import socket
import uuid
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from whetstone.chat import Message, ToolSpec
from whetstone.chat.api.asked import Answer, Asked, RefusedError, told, words
from whetstone.chat.api.fields import finite, flag, read_body, receive_body
from whetstone.chat.api.openai_completions import COMPLETIONS
from whetstone.chat.api.openai_responses import RESPONSES
from whetstone.chat.api.protocol import Wire
from whetstone.chat.api.routes import ROUTES, models_listed, rejection
from whetstone.chat.api.stored_responses import StoredResponses
from whetstone.environments.dependencies import package
from whetstone.environments.hosting.workers import same_hashes
from whetstone.environments.protocol import Observation, StepResult
from whetstone.errors import EpisodeError, InfrastructureError, RecipeError, TaskError
from whetstone.network.connections import patient_protocol
from whetstone.network.http_layer import RouteError
from whetstone.plain_json import plain
from whetstone.plugins import find_part
from whetstone.sandbox import Limits, enclosed
from whetstone.tools.threads import call_user_function
from whetstone.trajectory import EndReason, Task

_MOST_OUTPUT = 1 << 16
"""Bytes of what a command prints that are kept, its end."""
_MOST_BODY, _BODY_SECONDS = 16 << 20, 60.0
"""Maximum size of a request, and time until it is complete."""
_MOST_LINGERING = 1.0
"""Seconds."""
_MOST_STARTING, _STARTING_SECONDS = 16, 1.0
"""Agents that begin at once, and how long one counts as beginning. Clients give up where nobody answers their call for
five seconds, which hundreds that all begin at the same moment in one process wait for one another."""
_MODEL = "policy"
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
        self._known: list[list[object]] = []
        """What was said so far, as the agent knows it."""
        self._tools: tuple[ToolSpec, ...] = ()
        self._running: asyncio.Task[None] | None = None
        self._door: _Door | None = None
        self.final: dict[str, Any] = {}
        """What is known of how it ended."""

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """See `Environment`.

        Raises:
            EpisodeError: The agent ended without a request.
        """
        self._door = await _Door.here()
        self._door.agents[self._id] = self
        url = f"{self._door.url}/episodes/{self._id}/v1"
        first = asyncio.ensure_future(self._requests.get())
        try:
            async with self._door.starting:
                self._running = asyncio.ensure_future(self._run(task, url))
                self._running.add_done_callback(lambda _: self._requests.put_nowait(None))
                await asyncio.wait({first}, timeout=_STARTING_SECONDS)
            self._pending = await first
        finally:
            first.cancel()
        if self._pending is None:
            self._raise_ours()
            raise EpisodeError(f"the agent asked its model nothing; it ended by {self._ending()}")
        asked = self._pending.asked
        self._tools = asked.tools
        self._known = [words(message) for message in asked.messages]
        return Observation(asked.messages, asked.tools)

    async def step(self, action: Message) -> StepResult:
        """See `Environment`.

        Raises:
            EpisodeError: The agent crashed, where that says nothing of the policy (`crash: error`).
        """
        assert self._pending is not None
        thought, said = told(action)
        self._pending.answer.set_result(Answer(said, thought, finish="tool_calls" if said.tool_calls else "stop"))
        self._known.append(words(said))
        self._pending = await self._requests.get()
        if self._pending is None:
            self._raise_ours()
            if self._crash == "error" and self.final.get("failed"):
                raise EpisodeError(f"it ended by {self._ending()}")
            return StepResult(Observation(()), reason=EndReason.TERMINATED, terminated=True)
        asked = self._pending.asked
        heard = [words(message) for message in asked.messages]
        goes_on = asked.tools == self._tools and heard[: len(self._known)] == self._known
        new = asked.messages[len(self._known) :] if goes_on else asked.messages
        goes_on = goes_on and bool(new) and all(message.role != "assistant" for message in new)
        self._known, self._tools = heard, asked.tools
        return StepResult(Observation(new if goes_on else asked.messages, asked.tools), afresh=not goes_on)

    def verdict(self) -> Mapping[str, Any]:
        """What the agent returned or printed last (`answer`), how it ended (`exit`), and what somebody paid it.

        One that fell over before anybody did was no success.
        """
        fell = {"success": False, "score": 0.0} if self.final.get("failed") else {}
        return {**fell, **self.final}

    async def close(self) -> None:
        """See `Environment`."""
        if self._door is not None:
            self._door.agents.pop(self._id, None)
            self._door.responses.forget(self._id)
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._running
        while self._pending is not None or not self._requests.empty():
            if self._pending is not None and not self._pending.answer.done():
                self._pending.answer.set_exception(RefusedError("the episode is over", status=409, code="episode_over"))
                self._pending.answer.exception()
            self._pending = None if self._requests.empty() else self._requests.get_nowait()

    async def ask(self, asked: Asked) -> Answer:
        """The policy's answer to a request of the agent."""
        request = _Request(asked)
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
        given: dict[str, Any] = {"task": task.prompt, "id": task.id, "base_url": url, "api_key": _KEY, "model": _MODEL}
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
            self.final |= {"failed": f"{type(error).__name__}: {error}"[:500]}
            return
        if isinstance(returned, Mapping):
            self.final |= plain(dict(returned))
        elif isinstance(returned, bool | int | float):
            self.final |= {"score": float(returned), "success": returned >= 1}
        elif returned is not None:
            self.final |= {"answer": str(returned)[-_MOST_OUTPUT:]}

    async def _run_command(self, task: Task) -> None:
        argv = [part.replace("{task}", task.prompt).replace("{id}", task.id) for part in self._command]
        assert self._door is not None
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
                stack.callback((await self._door.stand_behind(inside.door)).close)
                inside.begin()
            else:
                variables = {**same_hashes(), **_told(f"{self._door.url}/episodes/{self._id}"), **self._variables}
                process = await self._started(argv, variables)
                stack.push_async_callback(_end, process)
            assert process.stdout is not None
            assert process.stderr is not None
            printed, complained = await asyncio.gather(_tail(process.stdout), _tail(process.stderr))
            code = await process.wait()
        last = printed.strip().rpartition("\n")[2]
        self.final = {"answer": last, "exit": code} | self.final
        if code:
            self.final["failed"] = f"exit status {code}: {complained.strip().rpartition(chr(10))[2]}"[:500]

    async def _started(self, argv: Sequence[str], variables: Mapping[str, str]) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *argv,
                cwd=self._folder or None,
                env=variables,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise RecipeError(f"environment agent: {argv[0]}: {error.strerror or error}") from None

    def _ending(self) -> str:
        return str(self.final.get("failed", "itself"))

    def _raise_ours(self) -> None:
        """What failed here rather than in the agent, if it did: nothing can be said of the episode then."""
        error = None if self._running is None or self._running.cancelled() else self._running.exception()
        if error is not None:
            raise error


class _Request:
    """What an agent waits for."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()


def _told(base: str) -> dict[str, str]:
    """Where a command asks, in the words of both clients; Anthropic's adds /v1 itself."""
    openai = {"BASE_URL": f"{base}/v1", "API_BASE": f"{base}/v1", "API_KEY": _KEY, "MODEL": _MODEL}
    anthropic = {"BASE_URL": base, "API_KEY": _KEY, "MODEL": _MODEL}
    told = {"OPENAI": openai, "ANTHROPIC": anthropic}
    return {f"{who}_{name}": value for who, said in told.items() for name, value in said.items()}


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


class _Door:
    """Where the agents of an event loop ask: one server on this machine, for all of them."""

    _of: ClassVar[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Awaitable[_Door]]] = weakref.WeakKeyDictionary()

    def __init__(self, url: str, agents: dict[str, Agent], responses: StoredResponses) -> None:
        self.url, self.agents, self.responses = url, agents, responses
        self.serving: asyncio.Future[None] | None = None
        self._server: Any = None
        self.starting = asyncio.Semaphore(_MOST_STARTING)
        """Held from an agent's start to its first request."""

    async def stand_behind(self, listening: socket.socket) -> asyncio.Server:
        """Answer at another socket, too, until what is returned is closed."""
        server, config = self._server, self._server.config

        def protocol() -> asyncio.Protocol:
            made: asyncio.Protocol = config.http_protocol_class(
                config=config, server_state=server.server_state, app_state=server.lifespan.state
            )
            return made

        return await asyncio.get_running_loop().create_server(protocol, sock=listening)

    @classmethod
    async def here(cls) -> _Door:
        """The one of this loop."""
        loop = asyncio.get_running_loop()
        if loop not in cls._of:
            cls._of[loop] = asyncio.ensure_future(cls._opened())
        return await cls._of[loop]

    @classmethod
    async def _opened(cls) -> _Door:
        uvicorn = importlib.import_module("uvicorn")
        agents: dict[str, Agent] = {}
        responses = StoredResponses()
        config = uvicorn.Config(
            _application(agents, responses),
            log_level="critical",
            lifespan="off",
            timeout_keep_alive=60,
            http=patient_protocol(),  # whoever asks is foreign code
        )
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # the run's own
        opened, begin = asyncio.Event(), server.startup

        async def startup(sockets: Any = None) -> None:
            await begin(sockets=sockets)
            opened.set()

        server.startup = startup
        bound = socket.create_server(("127.0.0.1", 0), backlog=2048)
        door = cls(f"http://127.0.0.1:{bound.getsockname()[1]}", agents, responses)
        door._server = server
        door.serving = asyncio.ensure_future(server.serve(sockets=[bound]))
        await opened.wait()
        return door


def _application(agents: Mapping[str, Agent], stored: StoredResponses) -> Any:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    def agent_of(request: Request) -> Agent:
        agent = agents.get(request.path_params["id"])
        if agent is None:
            raise RefusedError("the episode is over", status=409, code="episode_over")
        return agent

    async def body_of(request: Request) -> bytes:
        length = request.headers.get("content-length", "")
        pieces = request.stream()
        return await receive_body(pieces, length=length, max_bytes=_MOST_BODY, seconds=_BODY_SECONDS)

    async def answer(wire: Wire, request: Request) -> Response:
        agent, owner, body = agent_of(request), request.path_params["id"], read_body(await body_of(request))
        if wire is COMPLETIONS:
            raise RefusedError("in training an agent speaks in messages: /v1/chat/completions, or another of the APIs")
        if wire is RESPONSES:
            body = stored.resolved(owner, body)
        asked, is_streamed = wire.asked(body), flag(body, "stream")
        _refuse_untold(asked)
        answers = [await agent.ask(asked)]
        id, model = f"{wire.id}{uuid.uuid4().hex}", str(body.get("model") or _MODEL)
        told = wire.whole(id, model, answers, body, None)
        if wire is RESPONSES:
            stored.keep(owner, body, told)
        if not is_streamed:
            return JSONResponse(told)
        stream = wire.stream(id, model, body, None)
        return Response("".join((*stream.opened(1, 0), *stream.ended(answers))), media_type="text/event-stream")

    async def counted(request: Request) -> Response:
        raise RefusedError("in training nobody counts tokens before an answer is drawn", status=404, code="not_found")

    async def models(request: Request) -> JSONResponse:
        return JSONResponse(models_listed(_MODEL))

    async def reward(request: Request) -> JSONResponse:
        agent = agent_of(request)
        agent.pay(read_body(await body_of(request)))
        return JSONResponse({"id": request.path_params["id"], **agent.final})

    async def refused(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, HTTPException):
            error = RouteError(error.status_code, str(error.detail), error.headers)
        status, body, headers = rejection(request.method, request.url.path, request.headers, error)
        return JSONResponse(body, status, headers)

    base = "/episodes/{id}/v1"
    routes = [Route(f"{base}/{path}", partial(answer, wire), methods=["POST"]) for path, wire in ROUTES.items()]
    routes += [
        Route(f"{base}/messages/count_tokens", counted, methods=["POST"]),
        Route(f"{base}/models", models),
        Route(f"{base}/reward", reward, methods=["POST"]),
    ]
    kinds = (RefusedError, HTTPException, Exception)
    return Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, refused))


def _refuse_untold(asked: Asked) -> None:
    """What is asked for that no recipe can give.

    Raises:
        RefusedError: There is such.
    """
    if asked.count > 1:
        raise RefusedError("n: in training one answer is drawn; the recipe says how many episodes", param="n")
    if asked.schema is not None:
        raise RefusedError(
            "response_format: in training answers are drawn as the model says them; ask for it in a message",
            param="response_format",
            code="unsupported_parameter",
        )
    if asked.top_logprobs:
        raise RefusedError("top_logprobs: in training log-probs are the learner's affair", param="top_logprobs")
