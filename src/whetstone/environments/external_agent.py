"""External agent as an environment: the agent runs its own loop and calls the policy through an HTTP API.

    reset   the agent starts, with the OPENAI_BASE_URL of this episode (or Anthropic's); its first request is the
            first observation
    step    the action answers the pending request; the next request is the observation, the agent's exit the end

The conversation is an ordinary episode: it can be sampled, trained, forked and compared. The agent needs no changes for
Whetstone. The recipe sets the sampling parameters (temperature, seed), not the client.

Note:
    An agent with sub-agents sends requests of several conversations, in turn or at once. Each request extends the
    longest conversation that is its prefix, so every conversation keeps its sampled tokens; two requests that extend
    the same answer are branches. A rewritten history starts a new conversation. An agent that hangs, crashes or never
    calls the model must not block the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import shlex
import shutil
import signal
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from whetstone.chat import Message, ToolSpec
from whetstone.chat.api.request_fields import parse_finite
from whetstone.chat.api.requests import (
    CompletionRequest,
    CompletionResponse,
    RefusedError,
    comparison_key,
    split_thinking,
)
from whetstone.environments.agent_container import (
    AGENT_CONTAINER_LIMITS,
    WORKSPACE,
    open_agent_containers,
    run_in_container,
)
from whetstone.environments.agent_server import MODEL, AgentServer
from whetstone.environments.coding_agents import (
    fill_placeholders,
    find_coding_agent,
    inherited_variables,
    read_changed_files,
)
from whetstone.environments.dependencies import require_package
from whetstone.environments.protocol import MAX_BRANCH_POINTS, Observation, StepResult
from whetstone.environments.sandbox_grading import WorkspaceGrading
from whetstone.errors import EpisodeError, InfrastructureError, RecipeError, TaskError
from whetstone.plugins import find_part
from whetstone.sandbox import Ending, Isolation, Limits, Outcome, sandboxed_process, shared_sandbox
from whetstone.sandbox.archive_transfer import pack_workspace
from whetstone.sandbox.call_outcomes import describe_end
from whetstone.sandbox.containers.container_session import ContainerSession
from whetstone.sandbox.guest.folder_archives import pack_folder
from whetstone.sandbox.isolation import WORK, exceeds_limits, private_folder, remove_folder
from whetstone.sandbox.protocol import SessionPool
from whetstone.strict_json import to_plain_values
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.tools.side_effects import Effect, declared_effect
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import EndReason, Task
from whetstone.user_code import describe_exception

_MAX_OUTPUT_BYTES = 1 << 16
"""Maximum bytes of a command's output that are stored, from its end."""
_LINGERING_SECONDS = 1.0
"""Seconds to wait for the output of a killed process."""
_SCAN_SECONDS = 1.0
"""Seconds between two measurements of the workspace of a sandboxed command."""
_STARTING_SECONDS = 1.0
"""Seconds after its start until an agent no longer counts as starting."""
_KEY = "none"
_LIMITS = Limits(memory_mb=2048, processes=128)


class ExternalAgent:
    """Environment that runs an external agent, which calls the policy over HTTP.

    One instance runs the agent once. The recipe name is `agent`.

    Ends: terminated when the agent exits; by the deadline of the episode.

    Args:
        command: Command to run, with `{task}` for the task's prompt and `{id}` for its id; or
        program: Name of a known coding agent, instead of a command: `claude-code`, `codex`,
            `opencode` or `mini-swe-agent`. It runs in a new home folder.
        function: `package.module:name`, called with those of `task`, `id`, `messages`, `base_url`,
            `anthropic_base_url`, `api_key` and `model` that it has parameters for; async, or plain in a separate
            thread.
        folder: Working directory of a command; empty: the current directory.
        workspace: Folder whose copy is the working directory of each episode, instead of `folder`. The text of files
            that the agent wrote is in `trajectory.final["files"]`, by their relative paths.
        variables: Environment variables of a command, in addition to `OPENAI_BASE_URL`, `OPENAI_API_KEY` and
            `OPENAI_MODEL`, and the same of `ANTHROPIC`. Of the variables of this process, a command has only those that
            hold no secrets, such as `PATH`, `HOME` and `LANG`.
        crash: Consequence of an agent that fails. `outcome`: the episode ends and the reward scores it; `error`: the
            episode has no score.
        sandbox: `true`: run a command like untrusted code, in namespaces: it reads this Python, the system's programs,
            `folder` and `readable`, writes only to its home and the copy of `workspace`, and reaches only its model. Or
            a container per episode, such as `{container: podman, image: NAME}`, with the program in its image. Both
            have `workspace` at `/workspace`.
        readable: Other folders that the sandboxed command can read, such as the environment in which its program is
            installed.
        start_seconds: Time after which a command without a request is ended; it may wait for a login, or update itself.
        limits: Resource limits of the sandbox; the episode limits time. 2 GiB per process, or per container, by
            default.
        grading: Reward by a command that runs in a separate sandbox with the files of the workspace:
            `{command: …, tests: FOLDER}`; see `GradingOptions`. It replaces a posted reward. Without `image`, a
            command with `sandbox: true` is graded in namespaces.

    Raises:
        RecipeError: If neither or both of `command` and `function` are given, if the function does not exist, or if a
            function is to be sandboxed.
    """

    needs = (require_package("starlette", "serve"), require_package("uvicorn", "serve"))

    def __init__(
        self,
        *,
        command: str | Sequence[str] = (),
        program: str = "",
        function: str | Callable[..., Any] = "",
        folder: str = "",
        workspace: str = "",
        variables: Mapping[str, str] | None = None,
        crash: str = "outcome",
        sandbox: bool | Mapping[str, Any] = False,
        readable: Sequence[str] = (),
        start_seconds: float = 300.0,
        limits: Limits | None = None,
        grading: Mapping[str, Any] | None = None,
    ) -> None:
        if bool(command) + bool(function) + bool(program) != 1:
            raise RecipeError("environment agent: set one of command, program and function")
        if crash not in ("outcome", "error"):
            raise RecipeError(f'environment agent: crash must be "outcome" or "error", got "{crash}"')
        if workspace and (folder or function):
            raise RecipeError("environment agent: workspace requires a command and no folder, whose place it takes")
        if workspace and not os.path.isdir(workspace):
            raise RecipeError(f"environment agent: workspace: there is no folder {workspace}; create it")
        variables = dict(variables or {})
        is_contained = isinstance(sandbox, Mapping)
        if program:
            agent = find_coding_agent(program, variables.get("PATH"), is_installed=not is_contained)
            command, variables = agent.command, {**agent.variables, **variables}
        if sandbox and not command:
            raise RecipeError(
                "environment agent: sandbox: a function runs in this process and cannot be sandboxed; "
                "set command instead"
            )
        if (not sandbox and (readable or limits)) or (is_contained and (readable or folder)):
            raise RecipeError(
                "environment agent: readable requires `sandbox: true`, limits a sandbox; a container has no folder"
            )
        self._command = shlex.split(command) if isinstance(command, str) else list(command)
        self._function = find_part("agent", function, {}) if isinstance(function, str) and function else function
        folder = os.path.abspath(folder) if folder else ""
        self._folder, self._variables, self._crash = folder, variables, crash
        self._workspace, self._program, self._start_seconds = workspace, program, start_seconds
        self._printed = b""
        """End of the output of a running command."""
        self._sandbox, self._readable = sandbox is True, tuple(readable)
        self._limits = limits or (AGENT_CONTAINER_LIMITS if is_contained else _LIMITS)
        self._containers = open_agent_containers(sandbox) if isinstance(sandbox, Mapping) else None
        if grading is not None and not (workspace or is_contained):
            raise RecipeError("environment agent: grading: there are no files to grade; set workspace, or a container")
        self._grading: WorkspaceGrading | None = None
        self._grades_in_namespaces = self._sandbox and grading is not None and not grading.get("image")
        if grading is not None:
            pool: SessionPool | None = self._containers
            pool = shared_sandbox(Isolation.NAMESPACES) if self._grades_in_namespaces else pool
            self._grading = WorkspaceGrading(grading, pool)
        self._files = contextlib.AsyncExitStack()
        """Removes the container or the folder of the command when the episode is closed."""
        self._session: ContainerSession | None = None
        self._id = uuid.uuid4().hex
        self._requests: asyncio.Queue[_Request | None] = asyncio.Queue()
        self._pending: dict[int, _Request] = {}
        """Requests without an answer, by conversation, in the order in which they were observed."""
        self._conversations: list[_Conversation] = []
        self._is_concurrent = True
        """Whether the rollout answers requests concurrently; False once it calls `step`."""
        self._running: asyncio.Task[None] | None = None
        self._server: AgentServer | None = None
        self.final: dict[str, Any] = {}
        """Result of the agent so far: return value or output, exit status, posted reward, error."""

    @property
    def effects(self) -> Effect | None:
        """Return the side effect that the agent's function declares.

        None for a command, whose effect is unknown.
        """
        return declared_effect(self._function)

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Start the agent and return its first request as the first observation.

        Raises:
            EpisodeError: If the agent ended without a request.
            RecipeError: If the command cannot be executed.
        """
        self._task, self._server = task, await AgentServer.for_loop()
        self._server.agents[self._id] = self
        url = f"{self._server.url}/episodes/{self._id}/v1"
        first = asyncio.ensure_future(self._requests.get())
        try:
            async with self._server.starting:
                self._running = asyncio.ensure_future(self._run(task, url))
                self._running.add_done_callback(lambda _: self._requests.put_nowait(None))
                await asyncio.wait({first}, timeout=_STARTING_SECONDS)
            request = await self._wait_for_first_request(first)
        finally:
            first.cancel()
        if request is None:
            self._raise_internal_error()
            raise EpisodeError(f"the agent ended without a request to its model: {self._ending()}")
        return self._observe(request)

    async def _wait_for_first_request(self, first: asyncio.Future[_Request | None]) -> _Request | None:
        """Return the first request; None if the agent ended without one.

        Raises:
            EpisodeError: If a command sends no request in `start_seconds`.
        """
        await asyncio.wait({first}, timeout=self._start_seconds if self._command else None)
        if first.done():
            return first.result()
        last = sanitize_text(self._printed.decode(errors="replace")).strip().rpartition("\n")[2][-200:]
        raise EpisodeError(
            f"the agent sent no request to its model in {self._start_seconds:g} s; its last output: "
            f"{last or 'none'}; if it waits for a login or updates itself, disable that by `variables`"
        )

    async def step(self, action: Message) -> StepResult:
        """Answer the agent's oldest pending request with the action and return its next request.

        The episode ends when the agent exits instead.

        Raises:
            EpisodeError: If the agent crashed and `crash` is `error`.
        """
        await self.answer_request(next(iter(self._pending)), action)
        self._is_concurrent = False
        observation = await self.next_request()
        if observation is None:
            return StepResult(Observation(()), reason=EndReason.TERMINATED, terminated=True)
        return StepResult(observation)

    async def answer_request(self, conversation: int, action: Message) -> None:
        """Answer the pending request of a conversation with the action."""
        request = self._pending.pop(conversation)
        thought, message = split_thinking(action)
        answered = self._conversations[conversation]
        answered.known.append(comparison_key(message))
        answered.lengths.append(len(answered.known))
        if not request.answer.done():  # else the client is gone
            request.answer.set_result(
                CompletionResponse(message, thought, finish="tool_calls" if message.tool_calls else "stop")
            )

    async def next_request(self) -> Observation | None:
        """Return the agent's next request as an observation; None if the agent has exited.

        Raises:
            EpisodeError: If the agent crashed and `crash` is `error`.
        """
        request = await self._requests.get()
        if request is None:
            self._raise_internal_error()
            if self._crash == "error" and self.final.get("failed"):
                raise EpisodeError(f"the agent ended with an error: {self._ending()}")
            return None
        return self._observe(request)

    def _observe(self, request: _Request) -> Observation:
        """Return the new messages of a request as an observation.

        The request extends the longest conversation that it contains up to an answer. If another request has extended
        that conversation already, a new conversation branches off after the answer. A request that contains no answer
        starts a new conversation.
        """
        content = request.content
        keys = [comparison_key(message) for message in content.messages]
        candidates: list[tuple[int, bool, int, int]] = []
        for number, each in enumerate(self._conversations):
            if (each.tools, each.agent) != (content.tools, request.agent):
                continue
            last = len(each.lengths) - 1
            for k in range(last, max(last - MAX_BRANCH_POINTS, -1), -1):
                length = each.lengths[k]
                is_free = k == last and number not in self._pending
                follows = length < len(keys) and keys[:length] == each.known[:length]
                if follows and all(message.role != "assistant" for message in content.messages[length:]):
                    candidates.append((length, is_free, number, k))
        length, is_free, parent, action = max(candidates, default=(0, False, -1, -1))
        branch = None if parent < 0 or is_free else (parent, action)
        if branch is not None and not self._is_concurrent:
            length, branch = 0, None
        number = parent if is_free else len(self._conversations)
        if not is_free:
            self._conversations.append(_Conversation(content.tools, request.agent))
        conversation = self._conversations[number]
        conversation.known, self._pending[number] = keys, request
        new_messages = content.messages[length:]
        return Observation(new_messages, content.tools, conversation=number, agent=request.agent, branch=branch)

    async def verdict(self) -> Mapping[str, Any]:
        """Return the agent's result: `answer`, `exit` status, and the posted reward or that of `grading`.

        `answer` is the return value or the last line of output. If the agent crashed and there is no other reward, the
        episode is not a success. `grading` grades the files at the end of the episode, also if that was truncated.

        Raises:
            InfrastructureError: The grading has failed.
        """
        if self._grading is not None:
            return {**self.final, **await self._grade(self._grading)}
        fell = {"success": False, "score": 0.0} if self.final.get("failed") else {}
        return {**fell, **self.final}

    async def _grade(self, grading: WorkspaceGrading) -> dict[str, Any]:
        """Return the verdict on the files in the container of the agent, or in its folder on this machine."""
        target = grading.options.workspace or (WORK if self._grades_in_namespaces else WORKSPACE)
        is_sandbox_of_agent = self._grades_in_namespaces or self._containers is not None
        limits = self._limits if is_sandbox_of_agent else AGENT_CONTAINER_LIMITS

        async def pack_episode(archive: IO[bytes]) -> Outcome:
            if self._session is not None:
                return await self._session.download_archive(target, archive)
            return await asyncio.to_thread(pack_workspace, self._folder, archive, limits)

        async def pack_original(archive: IO[bytes]) -> Outcome:
            if self._workspace:
                await asyncio.to_thread(lambda: pack_folder(os.path.realpath(self._workspace), archive))
            return Outcome(Ending.OK)

        return await grading.grade_files(self._task, limits, target, pack_episode, pack_original)

    async def close(self) -> None:
        """Cancel the agent and refuse its pending requests with status 409."""
        if self._server is not None:
            self._server.agents.pop(self._id, None)
            self._server.responses.delete_all(self._id)
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._running
        waiting = [*self._pending.values()]
        while not self._requests.empty():
            request = self._requests.get_nowait()
            waiting += [] if request is None else [request]
        for request in waiting:
            if not request.answer.done():
                request.answer.set_exception(RefusedError("the episode is over", status=409, code="episode_over"))
                request.answer.exception()
        self._pending.clear()
        self._session = None
        await self._files.aclose()

    async def request_action(self, content: CompletionRequest, agent: str = "") -> CompletionResponse:
        """Return the policy's response to a request of the agent; called by `AgentServer`.

        Waits until `step` provides the action.

        Args:
            content: Parsed request.
            agent: Name of the agent that sends the request; empty if it has no name.
        """
        request = _Request(content, agent)
        self._requests.put_nowait(request)
        return await request.answer

    def record_reward(self, body: Mapping[str, Any]) -> None:
        """Record a reward that the agent posted for its episode; called by `AgentServer`.

        Args:
            body: JSON with `reward` and optionally `success`, which defaults to a reward of at least 1.

        Raises:
            RefusedError: If the reward is not a finite number, or the body has other fields.
        """
        if unknown := sorted(set(body) - {"reward", "success"}):
            raise RefusedError(
                f"{unknown[0]}: unknown field; in training, the fields are reward and success", param=unknown[0]
            )
        reward = parse_finite(body.get("reward"), "reward")
        self.final |= {"score": reward, "success": bool(body.get("success", reward >= 1))}

    async def _run(self, task: Task, url: str) -> None:
        """Run the function or the command and store its result in `final`."""
        if self._command:
            await self._run_command(task)
            return
        available = {
            "task": task.prompt,
            "id": task.id,
            "messages": [message.to_openai() for message in task.opening],
            "base_url": url,
            "anthropic_base_url": url.removesuffix("/v1"),  # its client adds that itself
            "api_key": _KEY,
            "model": MODEL,
        }
        function: Any = self._function
        taken = inspect.signature(function).parameters
        every = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values())
        arguments = available if every else {name: value for name, value in available.items() if name in taken}
        try:
            self.final |= _parse_result(await call_user_function(function, **arguments))
        except (InfrastructureError, TaskError):
            raise
        except Exception as error:  # any other exception of the agent is a result of the episode
            self.final |= {"failed": describe_exception(error)[:500]}

    async def _run_command(self, task: Task) -> None:
        """Run the command until it exits; store its last line of output, exit status and files."""
        assert self._server is not None
        is_inside = self._sandbox or self._containers is not None
        port = f"http://127.0.0.1:{sandboxed_process.PORT}" if is_inside else self._server.url
        base = f"{port}/episodes/{self._id}"
        values = {"task": task.prompt, "id": task.id, "base_url": f"{base}/v1", "host_url": base}
        argv = [fill_placeholders(part, values) for part in self._command]
        variables = {name: fill_placeholders(value, values) for name, value in self._variables.items()}
        variables = {**_client_variables(base), **variables}
        if self._containers is not None:
            self._session = self._containers.session(limits=self._limits, workdir=WORKSPACE)
            self._files.callback(self._session.close)
            serve = self._server.serve_socket
            self._record_end(*await run_in_container(self._session, argv, variables, serve, self._workspace))
            return
        async with contextlib.AsyncExitStack() as stack:
            if self._workspace or (self._program and not self._sandbox):
                variables = {**await self._create_folders(), **variables}
            is_mounted = self._sandbox and bool(self._workspace)
            folder = WORKSPACE if is_mounted else self._folder
            variables = {"PWD": folder, **variables} if folder else variables  # some programs read only this
            if self._sandbox:
                inside = await sandboxed_process.start_program(
                    argv,
                    folder=folder,
                    variables=variables,
                    limits=self._limits,
                    also_readable=self._readable,
                    workspace=self._folder if is_mounted else "",
                )
                process = inside.process
                stack.push_async_callback(_end, process)
                stack.callback((await self._server.serve_socket(inside.door)).close)
                inside.release()
            else:
                process = await _start(argv, folder, {**inherited_variables(), **variables})
                stack.push_async_callback(_end, process)
            assert process.stdout is not None
            assert process.stderr is not None
            if is_mounted:
                stack.callback(asyncio.ensure_future(self._end_if_too_large(process)).cancel)
            printed, complained = await asyncio.gather(self._tail(process.stdout), self._tail(process.stderr))
            code = await process.wait()
        files = None
        if is_mounted and await asyncio.to_thread(exceeds_limits, self._folder, self._limits):
            code, complained, files = code or 1, describe_end("disk", None, self._limits)[1], {}
        elif self._workspace:
            files = await asyncio.to_thread(read_changed_files, Path(self._folder), Path(self._workspace))
        self._record_end(code, printed, complained, files)

    async def _create_folders(self) -> dict[str, str]:
        """Create the home, unless a sandbox has one, and the copy of the workspace; return variables.

        Raises:
            RecipeError: The workspace exceeds the limits of the sandbox.
        """
        place, variables = Path(private_folder()), {}
        self._files.push_async_callback(asyncio.to_thread, remove_folder, str(place))
        if not self._sandbox:
            (place / "home").mkdir()
            variables["HOME"] = str(place / "home")
        if self._workspace:
            self._folder = str(place / "work")
            await asyncio.to_thread(shutil.copytree, self._workspace, self._folder, symlinks=True)
        if self._sandbox and await asyncio.to_thread(exceeds_limits, self._folder, self._limits):
            most = f"{self._limits.folder_mb} MiB or {self._limits.files} files"
            raise RecipeError(
                f"environment agent: workspace: {self._workspace} has more than {most}; "
                "set `limits: {folder_mb: …, files: …}`"
            )
        return variables

    async def _end_if_too_large(self, process: asyncio.subprocess.Process) -> None:
        """Kill a sandboxed command once its workspace exceeds the limits."""
        while True:
            await asyncio.sleep(_SCAN_SECONDS)
            if await asyncio.to_thread(exceeds_limits, self._folder, self._limits, process.pid):
                return process.kill()

    def _record_end(self, code: int, printed: str, complained: str, files: dict[str, str] | None) -> None:
        """Store the exit status, the last line of output and the files of a command."""
        if files is not None:
            self.final["files"] = files
        last = printed.strip().rpartition("\n")[2]
        self.final = {"answer": last, "exit": code} | self.final
        if code:
            self.final["failed"] = f"exit status {code}: {complained.strip().rpartition(chr(10))[2]}"[:500]

    async def _tail(self, stream: asyncio.StreamReader) -> str:
        """Read a stream to its end and return its last `_MAX_OUTPUT_BYTES` bytes as text."""
        tail = b""
        while more := await stream.read(_MAX_OUTPUT_BYTES):
            tail = self._printed = (tail + more)[-_MAX_OUTPUT_BYTES:]
        return tail.decode(errors="replace")

    def _ending(self) -> str:
        """Return a description of how the agent ended, for error messages."""
        return str(self.final.get("failed", "itself"))

    def _raise_internal_error(self) -> None:
        """Raise the exception of this process, if any, that ended the agent.

        Such an exception is not the agent's failure; the episode has no score.
        """
        error = None if self._running is None or self._running.cancelled() else self._running.exception()
        if error is not None:
            raise error


class _Request:
    """A request of the agent that waits for an action of the policy."""

    def __init__(self, content: CompletionRequest, agent: str) -> None:
        self.content, self.agent = content, agent
        self.answer: asyncio.Future[CompletionResponse] = asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class _Conversation:
    """Conversation of the agent with its model: tools, agent name and messages."""

    tools: tuple[ToolSpec, ...]
    """Tools of the conversation's requests."""
    agent: str
    """Name of the agent that sends the requests."""
    known: list[list[object]] = field(default_factory=list)
    """Comparison keys of the messages so far."""
    lengths: list[int] = field(default_factory=list)
    """Number of messages up to each answer, inclusive."""


def _parse_result(returned: Any) -> dict[str, Any]:
    """Convert the return value of an agent function to the result of its episode.

    A mapping is used as it is, a number is a score, and any other value is an answer.
    """
    if isinstance(returned, Mapping):
        return dict(to_plain_values(dict(returned)))
    if isinstance(returned, bool | int | float):
        return {"score": float(returned), "success": returned >= 1}
    return {} if returned is None else {"answer": str(returned)[-_MAX_OUTPUT_BYTES:]}


def _client_variables(base: str) -> dict[str, str]:
    """Return the environment variables of OpenAI's and Anthropic's clients.

    Args:
        base: URL of the server.

    Anthropic's client appends /v1 itself.
    """
    openai = {"BASE_URL": f"{base}/v1", "API_BASE": f"{base}/v1", "API_KEY": _KEY, "MODEL": MODEL}
    anthropic = {"BASE_URL": base, "API_KEY": _KEY, "MODEL": MODEL}
    by_client = {"OPENAI": openai, "ANTHROPIC": anthropic}
    return {f"{client}_{name}": value for client, values in by_client.items() for name, value in values.items()}


async def _start(argv: Sequence[str], folder: str, variables: Mapping[str, str]) -> asyncio.subprocess.Process:
    """Start a command with its output in pipes, in a separate process group.

    `_end` stops the group.

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
        raise RecipeError(
            f"environment agent: command {argv[0]} cannot be started: {error.strerror or error}"
        ) from None


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the process group of a command and wait for it.

    Without this, the processes would outlive the event loop that started them.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    with contextlib.suppress(TimeoutError):  # a process that left the group may hold its output open
        async with asyncio.timeout(_LINGERING_SECONDS):
            await process.communicate()
