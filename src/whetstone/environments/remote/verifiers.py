"""Environments of the package `verifiers`: tasks, tools and rewards of an installed taskset, without an endpoint.

The package runs in a separate process, in a Python that has it (`verifiers_bridge.py`); the agent loop is Whetstone's.
A taskset that needs the package's harness or a model at an endpoint (judges, several agents, containers) is refused
with a one-line error.

Source: Prime Intellect's verifiers, 0.4.
"""

from __future__ import annotations

import asyncio
import functools
import json
import shutil
import subprocess
import sys
import uuid
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from whetstone.chat import Message, ToolSpec, tool_result
from whetstone.environments.hosting.workers import fixed_hash_variables
from whetstone.environments.protocol import Observation, StepResult
from whetstone.environments.remote.http_client import parse_reward
from whetstone.environments.text_actions import parse_or_none
from whetstone.errors import EpisodeError, InfrastructureError, RecipeError, TaskError, did_you_mean
from whetstone.tasks.finite_source import ListedTasks
from whetstone.tasks.splits import split_unless_all
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.trajectory import CallRecord, Task

_BRIDGE = Path(__file__).with_name("verifiers_bridge.py")
_MAX_BYTES = 1 << 26
"""Maximum bytes of one response of the process."""


class Verifiers:
    """Environment that plays a `verifiers` taskset with its tools and rewards.

    Ends: terminated on an action without a call.

    Args:
        taskset: Id of the installed taskset.
        python: Interpreter that has `verifiers` and the taskset; empty: the interpreter of this process.
        options: Configuration of the taskset, with its field names.
        runtime: `subprocess`: hooks and rewards that require a runtime get a folder of this machine, and their programs
            are not sandboxed; empty: such a taskset is refused.
        max_tasks: Maximum number of tasks that are read; tasksets may be infinite.
        success_at: Minimum reward of a success.
        seconds: Timeout of one request in seconds, including the loading of the taskset.

    Raises:
        RecipeError: If the interpreter does not exist.
    """

    def __init__(
        self,
        *,
        taskset: str,
        python: str = "",
        options: dict[str, Any] | None = None,
        runtime: Literal["", "subprocess"] = "",
        max_tasks: int = 10_000,
        success_at: float = 1.0,
        seconds: float = 120.0,
    ) -> None:
        self._command = bridge_command(taskset, python, options, runtime, max_tasks)
        self.success_at, self.seconds = success_at, seconds
        self._bridge: Bridge | None = None
        self._episode = ""
        self._transcript: list[dict[str, Any]] = []
        self._tools: dict[str, ToolSpec] = {}

    def check(self) -> None:
        """Check that the interpreter can import `verifiers`.

        Raises:
            RecipeError: If it cannot.
        """
        check_interpreter(self._command[0])

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Start the task in the process of the taskset and return its messages and tools.

        Raises:
            TaskError: If the taskset has no such task, or lacks a requirement.
            InfrastructureError: If the process failed.
        """
        await self._end_episode()
        self._bridge, self._episode = get_bridge(self._command, self.seconds), uuid.uuid4().hex
        if "index" not in task.private or "key" not in task.private:
            raise TaskError(f"task {task.id}: this is not a task of a verifiers taskset; set tasks.source: verifiers")
        place = {"index": task.private["index"], "key": task.private["key"]}
        answer = await self._bridge.send_request("begin", self._episode, seconds=self.seconds, **place)
        messages = tuple(map(Message.from_openai, answer["messages"]))
        self._tools = {
            tool["name"]: ToolSpec(tool["name"], tool["description"], tool["parameters"]) for tool in answer["tools"]
        }
        self._transcript = list(answer["messages"])
        return Observation(messages, tuple(self._tools.values()))

    async def step(self, action: Message) -> StepResult:
        """Execute the calls of an action in order.

        An action without calls ends the episode. A malformed call gets an error message and does not end the episode.
        """
        if self._bridge is None:
            raise EpisodeError("step was called before the first reset; call reset first")
        calls = [
            {"id": call.id or f"call_{len(self._transcript)}_{number}", "name": call.name, "arguments": call.arguments}
            for number, call in enumerate(action.tool_calls)
        ]
        self._transcript.append({"role": "assistant", "content": action.text or None, "tool_calls": calls or None})
        if action.malformed:
            messages = tuple(tool_result(f"error: {sanitize_text(what)}") for what in action.malformed)
            self._transcript += [{"role": "user", "content": message.text} for message in messages]
            return StepResult(
                Observation(messages), calls=tuple(CallRecord("", "malformed_call", 0.0) for _ in messages)
            )
        if not action.tool_calls:
            return StepResult(Observation(()), terminated=True)
        answers, records = [], []
        for call, record in zip(action.tool_calls, calls, strict=True):
            text, outcome = await self._execute_call(call.name, call.arguments)
            self._transcript.append({"role": "tool", "tool_call_id": record["id"], "name": call.name, "content": text})
            answers.append(tool_result(text, call_id=call.id or None))
            records.append(CallRecord(sanitize_text(call.name[:200]), outcome, 0.0))
        return StepResult(Observation(tuple(answers)), calls=tuple(records))

    async def verdict(self) -> Mapping[str, Any]:
        """Return the sum of the weighted rewards, and each reward and metric by its name.

        Raises:
            InfrastructureError: If a reward cannot be computed.
        """
        assert self._bridge is not None
        answer = await self._bridge.send_request(
            "score", self._episode, seconds=self.seconds, messages=self._transcript
        )
        reward = parse_reward(answer["reward"], "verifiers")
        done = {"success": reward >= self.success_at, "score": max(0.0, min(1.0, reward)), "reward": reward}
        return {**{name: parse_reward(part, f"verifiers: {name}") for name, part in answer["parts"].items()}, **done}

    async def close(self) -> None:
        """End the task in the process; the process stays for the next task."""
        await self._end_episode()

    async def _end_episode(self) -> None:
        """End the running task in the process of the taskset, if there is one."""
        bridge, self._bridge = self._bridge, None
        if bridge is not None and not bridge.has_ended:
            try:
                await bridge.send_request("end", self._episode, seconds=self.seconds)
            except InfrastructureError:
                return  # the process ended, and its episodes with it

    async def _execute_call(self, name: str, arguments: str) -> tuple[str, str]:
        """Execute a tool call in the process; return its text and its outcome."""
        if name not in self._tools:
            readable_name = sanitize_text(name[:100])
            return (
                f'error: there is no tool "{readable_name}"{did_you_mean(readable_name, self._tools)}',
                "unknown_tool",
            )
        parsed = parse_or_none(arguments)
        if parsed is None:
            return "error: the arguments are no JSON object", "invalid_arguments"
        assert self._bridge is not None
        answer = await self._bridge.send_request(
            "call", self._episode, seconds=self.seconds, name=name, arguments=parsed
        )
        text = sanitize_text(str(answer["text"]))
        return (f"error: {text}", "tool_error") if answer["failed"] else (text, "ok")


class VerifiersTasks(ListedTasks):
    """Task source of a `verifiers` taskset; the data for rewards stay in its process.

    Args:
        taskset: Id of the installed taskset.
        python: Interpreter that has `verifiers` and the taskset; empty: the interpreter of this process.
        options: Configuration of the taskset, with its field names.
        runtime: `subprocess` or empty; the same as that of the environment.
        max_tasks: Maximum number of tasks that are read; tasksets may be infinite.
        env: Configuration of the environment `verifiers_harness`, if it plays the tasks; `{}` if it has none; null: the
            environment is `verifiers`.
        seed: Determines the order of training tasks.
        held_out_fraction: Fraction kept for evaluation; 1 keeps all of them, and trains on the same.
        seconds: Timeout of loading in seconds.

    Raises:
        TaskError: If the taskset cannot be loaded, or lacks a requirement.
        RecipeError: If the interpreter does not exist.
    """

    def __init__(
        self,
        *,
        taskset: str,
        python: str = "",
        options: dict[str, Any] | None = None,
        runtime: Literal["", "subprocess"] = "",
        max_tasks: int = 10_000,
        env: dict[str, Any] | None = None,
        seed: int = 0,
        held_out_fraction: float = 0.1,
        seconds: float = 120.0,
    ) -> None:
        command = bridge_command(taskset, python, options, runtime, max_tasks, tasks=True, env=env)
        try:
            ran = subprocess.run(command, capture_output=True, timeout=seconds, check=False, env=fixed_hash_variables())
        except subprocess.TimeoutExpired:
            raise TaskError(f"verifiers: {taskset} was not loaded within {seconds:g} s; increase `seconds`") from None
        answer = _parse_first_line(ran.stdout, ran.stderr.decode(errors="replace"), taskset)
        tasks = [
            Task(row["id"], row["prompt"], {"index": index, "key": row["key"]})
            for index, row in enumerate(answer["tasks"])
        ]
        super().__init__(*split_unless_all(tasks, held_out_fraction, where=taskset), seed=seed)


class Bridge:
    """Process of a taskset (`verifiers_bridge.py`) for concurrent requests.

    `get_bridge` creates it and shares it among all episodes of a taskset.

    Args:
        command: Command of the process, see `bridge_command`.
        seconds: Timeout of loading in seconds.
    """

    def __init__(self, command: list[str], seconds: float) -> None:
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ready: asyncio.Future[asyncio.subprocess.Process] = asyncio.get_running_loop().create_future()
        self._last = 0
        self._life = asyncio.create_task(self._run_process(command, seconds))

    @property
    def has_ended(self) -> bool:
        """Return whether the process of the taskset has ended."""
        return self._life.done()

    async def send_request(self, what: str, episode: str, *, seconds: float, **fields: Any) -> Any:
        """Send a request to the process and return its result.

        Args:
            what: Kind of the request: `begin`, `call`, `score`, `play` or `end`.
            episode: Id of the episode.
            seconds: Timeout in seconds.
            fields: Further fields of the request.

        Raises:
            InfrastructureError: If the process is gone, too slow, or failed.
            TaskError: If the process refuses the task.
        """
        process = await asyncio.shield(self._ready)
        self._last += 1
        number, answer = self._last, asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        line = json.dumps({"number": number, "do": what, "episode": episode, **fields})
        try:
            assert process.stdin is not None
            process.stdin.write(f"{line}\n".encode())
            await process.stdin.drain()
            async with asyncio.timeout(seconds):
                await asyncio.wait({answer, self._life}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise InfrastructureError(
                f"verifiers: `{what}` was not answered within {seconds:g} s; increase `seconds`"
            ) from None
        except OSError as error:
            raise InfrastructureError(f"verifiers: the process ended: {error}") from None
        finally:
            self._waiting.pop(number, None)
        if not answer.done():
            raise InfrastructureError(f"verifiers: the process ended in `{what}`")
        reply = answer.result()
        if "error" in reply:
            text = " ".join(str(reply["error"]).split())[:300]
            raise (TaskError if reply.get("refused") else InfrastructureError)(f"verifiers: {what}: {text}")
        return reply["said"]

    async def _run_process(self, command: list[str], seconds: float) -> None:
        """Run the process and deliver its responses to the waiting requests."""
        process = None
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_MAX_BYTES,
                env=fixed_hash_variables(),
            )
            assert process.stdout is not None
            async with asyncio.timeout(seconds):
                first = await process.stdout.readline()
            _parse_first_line(first, "", command[-1])
            self._ready.set_result(process)
            while line := await process.stdout.readline():
                reply = json.loads(line)
                waiting = self._waiting.get(reply["number"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply)
        except TimeoutError:
            self._fail(
                InfrastructureError(f"verifiers: the taskset was not loaded within {seconds:g} s; increase `seconds`")
            )
        except (OSError, ValueError, KeyError) as error:
            self._fail(InfrastructureError(f"verifiers: {type(error).__name__}: {error}"))
        except TaskError as error:
            self._fail(error)
        finally:
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()

    def _fail(self, error: Exception) -> None:
        """Make all waiting and later requests raise an error of the process start."""
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # waiting requests raise it


_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Bridge]] = weakref.WeakKeyDictionary()


def get_bridge(command: list[str], seconds: float) -> Bridge:
    """Return the process of a taskset in the running event loop.

    Restart it if it ended.

    Args:
        command: Command of the process, see `bridge_command`.
        seconds: Timeout of loading in seconds.
    """
    bridges = _bridges.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps(command)
    if key not in bridges or bridges[key].has_ended:
        bridges[key] = Bridge(command, seconds)
    return bridges[key]


def bridge_command(
    taskset: str,
    python: str,
    options: dict[str, Any] | None,
    runtime: str,
    max_tasks: int,
    *,
    tasks: bool = False,
    env: dict[str, Any] | None = None,
) -> list[str]:
    """Return the command that starts the process of a taskset.

    Args:
        taskset: Id of the installed taskset.
        python: Interpreter; empty: the interpreter of this process.
        options: Configuration of the taskset.
        runtime: `subprocess` or empty; see `Verifiers`.
        max_tasks: Maximum number of tasks that are read.
        tasks: Print the tasks and exit.
        env: Configuration of the environment, if the package plays it with its harness.

    Raises:
        RecipeError: If the interpreter does not exist.
    """
    interpreter = shutil.which(python) if python else sys.executable
    if interpreter is None:
        brings = "python -m venv verifiers && verifiers/bin/pip install verifiers"
        raise RecipeError(f"verifiers: no interpreter {python}; run `{brings}` and set `python: verifiers/bin/python`")
    options_json = {
        "taskset": taskset,
        "options": options or {},
        "most": max_tasks,
        "runtime": runtime,
        "tasks": tasks,
        "env": env,
    }
    return [
        interpreter,
        "-P",
        str(_BRIDGE),
        json.dumps(options_json),
    ]  # -P: the script's folder has another module `verifiers`


@functools.cache
def check_interpreter(python: str) -> None:
    """Check that an interpreter can import the package `verifiers`; cached.

    Args:
        python: Path of the interpreter.

    Raises:
        RecipeError: If it cannot; the message has the command that installs the package.
    """
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('verifiers') is None)"
    if subprocess.run([python, "-P", "-c", look], capture_output=True, timeout=60).returncode:
        raise RecipeError(
            f"verifiers: {python}: the package verifiers is not installed; install it with: "
            f"{python} -m pip install verifiers"
        )


def _parse_first_line(line: bytes, complaints: str, what: str) -> dict[str, Any]:
    """Parse the first line that the process of a taskset prints.

    Args:
        line: The line, JSON with the tasks or an error.
        complaints: Standard error of the process.
        what: Name of the taskset, for messages.

    Raises:
        TaskError: If the taskset could not be loaded.
    """
    try:
        answer = json.loads(line)
    except ValueError:
        last = complaints.strip().rpartition("\n")[2][:200]
        raise TaskError(f"verifiers: {what[:200]}: the process printed no answer; {last}") from None
    if "error" in answer:
        text = str(answer["error"])
        brings = "; pip install verifiers brings the package, `python` names another interpreter"
        lacks = text.startswith("ModuleNotFoundError") and "'verifiers" in text
        raise TaskError(f"verifiers: {text[:300]}{brings if lacks else ''}")
    return dict(answer)
