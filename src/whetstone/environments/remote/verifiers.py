"""Environments of the package `verifiers`: the tasks, tools and rewards of an installed taskset, without an endpoint.

The package runs in a process of its own, in the Python that has it (`verifiers_bridge.py`); the agent is ours. What
needs the package's own harness or a model at an address (judges, several agents, containers) is refused in a line.

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
from whetstone.environments.commands import arguments_of
from whetstone.environments.hosting.workers import same_hashes
from whetstone.environments.protocol import Observation, StepResult
from whetstone.environments.remote.http_client import reward_of
from whetstone.errors import EpisodeError, InfrastructureError, RecipeError, TaskError, did_you_mean
from whetstone.tasks.listed import ListedTasks
from whetstone.tasks.splits import split_unless_all
from whetstone.tools.plain_text import plain
from whetstone.trajectory import CallRecord, Task

_BRIDGE = Path(__file__).with_name("verifiers_bridge.py")
_MOST_BYTES = 1 << 26
"""Of one answer."""


class Verifiers:
    """One task of a taskset. Ends: terminated on an action without a call.

    Args:
        taskset: Its id, as it is installed.
        python: The interpreter that has `verifiers` and the taskset; empty: this one.
        options: The taskset's configuration, by its own names.
        runtime: `subprocess`: hooks and rewards that ask for a runtime get a folder of this machine, where what they
            run is not confined; empty: such a taskset is refused.
        max_tasks: Tasks that are read of it; tasksets may have no end.
        success_at: The reward from which the episode is a success.
        seconds: How long one answer may take, the taskset's loading among them.

    Raises:
        RecipeError: There is no such interpreter.
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
        """See that the interpreter has the package.

        Raises:
            RecipeError: It has not.
        """
        check_interpreter(self._command[0])

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Begin the task there.

        Raises:
            TaskError: It is none of the taskset, or needs what is not at hand.
        """
        await self._leave()
        self._bridge, self._episode = bridge_of(self._command, self.seconds), uuid.uuid4().hex
        if "index" not in task.private or "key" not in task.private:
            raise TaskError(f"task {task.id}: no task of a verifiers taskset; its tasks are `source: verifiers`")
        place = {"index": task.private["index"], "key": task.private["key"]}
        said = await self._bridge.ask("begin", self._episode, seconds=self.seconds, **place)
        messages = tuple(map(Message.from_openai, said["messages"]))
        self._tools = {
            tool["name"]: ToolSpec(tool["name"], tool["description"], tool["parameters"]) for tool in said["tools"]
        }
        self._transcript = list(said["messages"])
        return Observation(messages, tuple(self._tools.values()))

    async def step(self, action: Message) -> StepResult:
        """Each call by its tool; an action without one is the answer, unless it tried to be a call."""
        if self._bridge is None:
            raise EpisodeError("a step before the first reset")
        calls = [
            {"id": call.id or f"call_{len(self._transcript)}_{number}", "name": call.name, "arguments": call.arguments}
            for number, call in enumerate(action.tool_calls)
        ]
        self._transcript.append({"role": "assistant", "content": action.text or None, "tool_calls": calls or None})
        if action.malformed:
            told = tuple(tool_result(f"error: {plain(what)}") for what in action.malformed)
            self._transcript += [{"role": "user", "content": message.text} for message in told]
            return StepResult(Observation(told), calls=tuple(CallRecord("", "malformed_call", 0.0) for _ in told))
        if not action.tool_calls:
            return StepResult(Observation(()), terminated=True)
        answers, records = [], []
        for call, made in zip(action.tool_calls, calls, strict=True):
            text, outcome = await self._called(call.name, call.arguments)
            self._transcript.append({"role": "tool", "tool_call_id": made["id"], "name": call.name, "content": text})
            answers.append(tool_result(text, call_id=call.id or None))
            records.append(CallRecord(plain(call.name[:200]), outcome, 0.0))
        return StepResult(Observation(tuple(answers)), calls=tuple(records))

    async def verdict(self) -> Mapping[str, Any]:
        """The sum of its weighted rewards, and each reward and metric by its name."""
        assert self._bridge is not None
        said = await self._bridge.ask("score", self._episode, seconds=self.seconds, messages=self._transcript)
        reward = reward_of(said["reward"], "verifiers")
        done = {"success": reward >= self.success_at, "score": max(0.0, min(1.0, reward)), "reward": reward}
        return {**{name: reward_of(part, f"verifiers: {name}") for name, part in said["parts"].items()}, **done}

    async def close(self) -> None:
        """End the task there; the process stays for the next."""
        await self._leave()

    async def _leave(self) -> None:
        bridge, self._bridge = self._bridge, None
        if bridge is not None and not bridge.over:
            try:
                await bridge.ask("end", self._episode, seconds=self.seconds)
            except InfrastructureError:
                return  # it has ended with all it had

    async def _called(self, name: str, arguments: str) -> tuple[str, str]:
        """(what comes back, how it went)"""
        if name not in self._tools:
            shown = plain(name[:100])
            return f'error: there is no tool "{shown}"{did_you_mean(shown, self._tools)}', "unknown_tool"
        given = arguments_of(arguments)
        if given is None:
            return "error: the arguments are no JSON object", "invalid_arguments"
        assert self._bridge is not None
        said = await self._bridge.ask("call", self._episode, seconds=self.seconds, name=name, arguments=given)
        text = plain(str(said["text"]))
        return (f"error: {text}", "tool_error") if said["failed"] else (text, "ok")


class VerifiersTasks(ListedTasks):
    """The tasks of a taskset; what they are judged by stays with it.

    Args:
        taskset: As of the environment, as are `python`, `options`, `runtime` and `max_tasks`.
        env: As of the environment `verifiers_harness`, where that plays them; `{}` there, too.
        seed: The order in which training tasks come.
        held_out_fraction: Fraction kept for evaluation; 1 keeps all of them, and trains on the same.
        seconds: How long loading may take.

    Raises:
        TaskError: The taskset cannot be loaded, or needs what is not at hand.
        RecipeError: There is no such interpreter.
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
            ran = subprocess.run(command, capture_output=True, timeout=seconds, check=False, env=same_hashes())
        except subprocess.TimeoutExpired:
            raise TaskError(f"verifiers: {taskset} was not loaded within {seconds:g} s") from None
        said = _first(ran.stdout, ran.stderr.decode(errors="replace"), taskset)
        tasks = [
            Task(row["id"], row["prompt"], {"index": index, "key": row["key"]})
            for index, row in enumerate(said["tasks"])
        ]
        super().__init__(*split_unless_all(tasks, held_out_fraction, where=taskset), seed=seed)


class Bridge:
    """A process with a taskset, of one event loop; many ask at once.

    Args:
        seconds: How long it may take to load.
    """

    def __init__(self, command: list[str], seconds: float) -> None:
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ready: asyncio.Future[asyncio.subprocess.Process] = asyncio.get_running_loop().create_future()
        self._last = 0
        self._life = asyncio.create_task(self._lived(command, seconds))

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._life.done()

    async def ask(self, what: str, episode: str, *, seconds: float, **given: Any) -> Any:
        """What it says.

        Raises:
            InfrastructureError: It is gone, takes too long, or something in it failed.
            TaskError: It refuses the task.
        """
        process = await asyncio.shield(self._ready)
        self._last += 1
        number, answer = self._last, asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        line = json.dumps({"number": number, "do": what, "episode": episode, **given})
        try:
            assert process.stdin is not None
            process.stdin.write(f"{line}\n".encode())
            await process.stdin.drain()
            async with asyncio.timeout(seconds):
                await asyncio.wait({answer, self._life}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise InfrastructureError(f"verifiers: `{what}` was not answered within {seconds:g} s") from None
        except OSError as error:
            raise InfrastructureError(f"verifiers: the process is gone: {error}") from None
        finally:
            self._waiting.pop(number, None)
        if not answer.done():
            raise InfrastructureError(f"verifiers: the process ended in `{what}`")
        said = answer.result()
        if "error" in said:
            text = " ".join(str(said["error"]).split())[:300]
            raise (TaskError if said.get("refused") else InfrastructureError)(f"verifiers: {what}: {text}")
        return said["said"]

    async def _lived(self, command: list[str], seconds: float) -> None:
        process = None
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_MOST_BYTES,
                env=same_hashes(),
            )
            assert process.stdout is not None
            async with asyncio.timeout(seconds):
                first = await process.stdout.readline()
            _first(first, "", command[-1])
            self._ready.set_result(process)
            while line := await process.stdout.readline():
                said = json.loads(line)
                waiting = self._waiting.get(said["number"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(said)
        except TimeoutError:
            self._failed(InfrastructureError(f"verifiers: not loaded within {seconds:g} s"))
        except (OSError, ValueError, KeyError) as error:
            self._failed(InfrastructureError(f"verifiers: {type(error).__name__}: {error}"))
        except TaskError as error:
            self._failed(error)
        finally:
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()

    def _failed(self, error: Exception) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # whoever waits is told


_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Bridge]] = weakref.WeakKeyDictionary()


def bridge_of(command: list[str], seconds: float) -> Bridge:
    """The process of a taskset in the running loop; started anew where it has ended."""
    here = _bridges.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps(command)
    if key not in here or here[key].over:
        here[key] = Bridge(command, seconds)
    return here[key]


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
    """What starts the process of a taskset.

    Args:
        tasks: Whether it says its tasks, and ends.
        env: The configuration of the environment that plays it, where it is not played from here.
    """
    found = shutil.which(python) if python else sys.executable
    if found is None:
        brings = "python -m venv verifiers && verifiers/bin/pip install verifiers"
        raise RecipeError(f"verifiers: there is no interpreter {python}: {brings}, and `python: verifiers/bin/python`")
    asked = {
        "taskset": taskset,
        "options": options or {},
        "most": max_tasks,
        "runtime": runtime,
        "tasks": tasks,
        "env": env,
    }
    return [found, "-P", str(_BRIDGE), json.dumps(asked)]  # -P: beside it stands a `verifiers` that is ours


@functools.cache
def check_interpreter(python: str) -> None:
    """See that an interpreter has the package `verifiers`.

    Raises:
        RecipeError: It has not; the message has the command.
    """
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('verifiers') is None)"
    if subprocess.run([python, "-P", "-c", look], capture_output=True, timeout=60).returncode:
        raise RecipeError(f"verifiers: {python} has no package verifiers: {python} -m pip install verifiers")


def _first(line: bytes, complaints: str, what: str) -> dict[str, Any]:
    """What the process says first.

    Raises:
        TaskError: It could not load the taskset.
    """
    try:
        said = json.loads(line)
    except ValueError:
        last = complaints.strip().rpartition("\n")[2][:200]
        raise TaskError(f"verifiers: {what[:200]}: the process said nothing; {last}") from None
    if "error" in said:
        text = str(said["error"])
        brings = "; pip install verifiers brings the package, `python` names another interpreter"
        lacks = text.startswith("ModuleNotFoundError") and "'verifiers" in text
        raise TaskError(f"verifiers: {text[:300]}{brings if lacks else ''}")
    return dict(said)
