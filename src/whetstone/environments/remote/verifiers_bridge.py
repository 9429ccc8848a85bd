"""Program that runs in the Python of the package `verifiers`: serves tasksets, tools and rewards as lines of JSON.

It imports nothing of Whetstone, so that the package can be installed in another environment, with other versions of
shared dependencies. `verifiers.py` starts it and sends requests over the standard streams.

Note:
    Output that an environment prints would corrupt the answers. The answers therefore go to a duplicate of standard
    output, and everything printed goes to standard error.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import sys
from typing import Any

from pydantic import TypeAdapter


class TasksetError(Exception):
    """The taskset or the task cannot be played here; the message is the reason."""


class TasksetHost:
    """Taskset whose tasks Whetstone's agent loop plays.

    Args:
        taskset: Id of the installed taskset.
        options: Configuration of the taskset.
        most: Maximum number of tasks that are read.
        runtime: `subprocess`: components that require a runtime get a folder of this machine; empty: they are refused.

    Raises:
        TasksetError: If the taskset has no tasks, or requires a harness, a container, a judge or a runtime.
    """

    def __init__(self, taskset: str, options: dict[str, Any], most: int, runtime: str) -> None:
        from verifiers.v1.envs.single_agent import SingleAgentEnv
        from verifiers.v1.utils.loaders import environment_class, load_taskset, taskset_config_type

        env = environment_class(taskset)
        if env is not SingleAgentEnv:
            raise TasksetError(f"{env.__name__} runs its agents itself; use the environment verifiers_harness")
        config = taskset_config_type(taskset).model_validate({**options, "id": taskset})
        self.taskset = load_taskset(config)
        self.tasks = list(itertools.islice(iter(self.taskset), most))
        if not self.tasks:
            raise TasksetError("it has no tasks")
        self.runtime = runtime
        self.shared = list(type(self.taskset).toolsets(config))
        self.episodes: dict[str, TasksetEpisode] = {}
        self._check(self.tasks[0])

    def _check(self, task: Any) -> None:
        """Refuse a taskset whose tasks have an unsupported requirement.

        Raises:
            TasksetError: If a task needs a container, a judge, or a runtime that is not allowed.
        """
        from verifiers.v1.task import Task

        if task.NEEDS_CONTAINER:
            raise TasksetError(
                "the tasks need a container, which only the harness starts; use the environment verifiers_harness"
            )
        if task.config.judges:
            raise TasksetError(
                "the rewards call a judge at an endpoint; remove `judges` from the `task` options of the taskset"
            )
        hooks = [fn for kind in ("metric", "reward") for fn in task.hooks(kind)]
        takes = [fn.__name__ for fn in hooks if "runtime" in inspect.signature(fn).parameters]
        takes += [name for name in ("setup", "finalize") if getattr(type(task), name) is not getattr(Task, name)]
        if takes and not self.runtime:
            raise TasksetError(
                f"{', '.join(takes)} require a runtime; `runtime: subprocess` runs them on this machine, not sandboxed"
            )

    async def answer_request(self, request: dict[str, Any]) -> Any:
        """Return the result of one request: `begin`, `call`, `score` or `end`.

        Raises:
            TasksetError: If the taskset has no such task.
        """
        if request["do"] == "begin":
            task = self.tasks[request["index"]] if request["index"] < len(self.tasks) else None
            if task is None or task.key != request["key"]:
                raise TasksetError(f"task {request['index']} has changed since the tasks were read")
            episode = self.episodes[request["episode"]] = TasksetEpisode(task, self.runtime)
            return await episode.start_task(self.shared)
        episode = self.episodes[request["episode"]]
        if request["do"] == "call":
            return await episode.call_tool(request["name"], request["arguments"])
        if request["do"] == "score":
            return await episode.score_conversation(request["messages"])
        await self.episodes.pop(request["episode"]).stop_runtime()
        return None


class HarnessTaskset:
    """Taskset that the package's environment and harness play against an endpoint.

    Args:
        taskset: Id of the installed taskset.
        options: Configuration of the taskset.
        most: Maximum number of tasks that are read.
        runtime: `subprocess`: a harness can execute the model's code on this machine, not sandboxed; empty: refused.
        env: Configuration of the environment, with its field names; roles that name no runtime run on this machine.

    Raises:
        TasksetError: If the taskset has no tasks, or its harness executes code without an allowed runtime.
    """

    def __init__(self, taskset: str, options: dict[str, Any], most: int, runtime: str, env: dict[str, Any]) -> None:
        from verifiers.v1.configs.agent import agent_config_fields
        from verifiers.v1.utils.loaders import env_config_type, load_environment

        config_type = env_config_type(taskset, env.get("id") or "")
        roles = {
            name: {"runtime": {"type": "subprocess"}, **env.get(name, {})}
            for name in agent_config_fields(config_type.model_construct())
        }
        config = config_type.model_validate({**env, **roles, "taskset": {**options, "id": taskset}})
        self.env = load_environment(config)
        self.tasks = list(itertools.islice(iter(self.env.taskset), most))
        if not self.tasks:
            raise TasksetError("it has no tasks")
        for name, harness in config.agent_harnesses().items():
            loaded = self.env._harnesses[name]
            if loaded.EXECUTES_CODE and getattr(config, name).runtime.type == "subprocess" and not runtime:
                raise TasksetError(
                    f"the harness {harness.id} executes code of the model; `runtime: subprocess` runs it on this "
                    f"machine, not sandboxed, `env: {{{name}: {{runtime: …}}}}` elsewhere"
                )
        self.playing: dict[str, asyncio.Task[Any]] = {}

    async def answer_request(self, request: dict[str, Any]) -> Any:
        """Return the result of one request: play an episode, or cancel it.

        Raises:
            TasksetError: If the taskset has no such task.
        """
        if request["do"] == "end":
            playing = self.playing.get(request["episode"])
            if playing is not None:
                playing.cancel()
            return None
        task = self.tasks[request["index"]] if request["index"] < len(self.tasks) else None
        if task is None or task.key != request["key"]:
            raise TasksetError(f"task {request['index']} has changed since the tasks were read")
        playing = self.playing[request["episode"]] = asyncio.ensure_future(self._play(task, request["base_url"]))
        try:
            return await playing
        except asyncio.CancelledError:
            return {"failed": "given up"}
        finally:
            del self.playing[request["episode"]]

    async def _play(self, task: Any, base_url: str) -> dict[str, Any]:
        """Play one task and return its reward, or the error under `failed`.

        The reward is the mean over the trainable traces.
        """
        from verifiers.v1.clients import EvalClientConfig, ModelContext

        client = EvalClientConfig(base_url=base_url, api_key_var="OPENAI_API_KEY")
        episode = await self.env.run_episode(task, ModelContext("policy", client))
        errors = [error for one in (episode, *episode.traces) for error in one.errors]
        if not episode.ok and errors:
            return {"failed": " ".join(str(errors[-1].message).split())[:500]}
        trainable = [trace for trace in episode.traces if trace.agent.trainable]
        if not trainable:
            return {"failed": "no trace of the episode is trainable"}
        parts: dict[str, float] = {}
        for trace in trainable:
            rewards = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
            values = {**{name: value for name, value in trace.metrics.items() if value is not None}, **rewards}
            parts |= (
                values if len(trainable) == 1 else {f"{trace.agent.name}_{n}": value for n, value in values.items()}
            )
        return {"reward": sum(trace.reward for trace in trainable) / len(trainable), "parts": parts}


class TasksetEpisode:
    """One running task of a taskset.

    Args:
        task: Task of the package.
        runtime: `subprocess` to create a runtime for the task; empty: none.
    """

    def __init__(self, task: Any, runtime: str) -> None:
        from verifiers.v1.configs.agent import AgentConfig
        from verifiers.v1.state import state_cls
        from verifiers.v1.trace import AgentInfo, Trace, TraceTask

        described = TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        self.task = task
        self.trace = Trace(task=described, state=state_cls(type(task))(), agent=AgentInfo(config=AgentConfig()))
        self._wants_runtime = bool(runtime)
        self._runtime: Any = None
        self._servers: dict[str, tuple[Any, str]] = {}

    async def start_task(self, shared: list[Any]) -> dict[str, Any]:
        """Set up the task and return its initial messages and tools.

        Args:
            shared: Toolsets that all tasks share.
        """
        from mcp.server.mcpserver import MCPServer
        from verifiers.v1.utils.decorators import invoke

        if self._wants_runtime:
            from verifiers.v1.runtimes import SubprocessConfig, make_runtime

            self._runtime = make_runtime(SubprocessConfig())
            await self._runtime.start()
            await invoke(self.task.setup, {"trace": self.trace, "runtime": self._runtime})
        tools = []
        for toolset in (*type(self.task).toolsets(self.task.config), *shared):
            # its state is that of the trace in this process, so nothing is fetched
            toolset._pull_state, toolset._push_state = self._state, _ignore_state
            await toolset.setup()
            if toolset not in shared:
                await toolset.setup_task(self.task.data)
            server = MCPServer(toolset.server_name or "tools")
            toolset.register(server)
            for tool in await server.list_tools():
                written = tool.model_dump(by_alias=True)
                name = f"{toolset.server_name}_{tool.name}" if toolset.server_name else tool.name
                self._servers[name] = (server, tool.name)
                tools.append(
                    {"name": name, "description": tool.description or "", "parameters": written["inputSchema"]}
                )
        prompt = self.task.data.prompt
        prompt_messages = (
            [] if prompt is None else [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        )
        messages = [one if isinstance(one, dict) else one.model_dump(mode="json") for one in prompt_messages]
        if self.task.data.system_prompt:
            messages.insert(0, {"role": "system", "content": self.task.data.system_prompt})
        return {"messages": messages, "tools": tools}

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Execute a tool; return the text of its result, and whether it failed."""
        server, own = self._servers[name]
        try:
            result = await server.call_tool(own, arguments)
        except Exception as error:  # an error of a tool, which the model may have caused
            return {"text": f"{type(error).__name__}: {error}", "failed": True}
        content = result.model_dump(mode="json", by_alias=False)
        texts = [part["text"] for part in content["content"] if part["type"] == "text"]
        return {"text": "\n".join(texts), "failed": bool(content["is_error"])}

    async def score_conversation(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the total reward, and each reward and metric by its name.

        Args:
            messages: The whole conversation.
        """
        from verifiers.v1.graph import MessageNode
        from verifiers.v1.trace import ModelCall
        from verifiers.v1.types import Message
        from verifiers.v1.utils.decorators import invoke

        read = TypeAdapter(Message)
        for number, message in enumerate(messages):
            sampled = message["role"] == "assistant"
            node = MessageNode(
                parent=number - 1 if number else None, message=read.validate_python(message), sampled=sampled
            )
            self.trace.nodes.append(node)
            if sampled:
                self.trace.calls.append(ModelCall(node=number))
        self.trace.is_completed = self.trace.ok = True
        if self._runtime is not None:
            await invoke(self.task.finalize, {"trace": self.trace, "runtime": self._runtime})
        await self.task.score(self.trace, self._runtime)
        rewards = {name: reward.score for name, reward in self.trace.rewards.items() if reward is not None}
        metrics = {name: value for name, value in self.trace.metrics.items() if value is not None}
        return {"reward": self.trace.reward, "parts": {**metrics, **rewards}}

    async def stop_runtime(self) -> None:
        """Stop the runtime that the task was set up with, if any."""
        if self._runtime is not None:
            await self._runtime.stop()

    async def _state(self) -> Any:
        return self.trace.state


async def _ignore_state(before: bytes) -> None:
    pass


def _list_tasks(tasks: list[Any]) -> list[dict[str, Any]]:
    """Return the id, the key and the prompt of every task."""
    return [
        {"id": str(task.data.id or task.data.name or index), "key": task.key, "prompt": task.data.prompt_text}
        for index, task in enumerate(tasks)
    ]


async def _serve(world: TasksetHost | HarnessTaskset, answers: Any) -> None:
    """Answer requests until EOF, with the services of the harness if there is one."""
    if isinstance(world, HarnessTaskset):
        async with world.env.serving():
            world.env._interception = None  # one per run instead: the shared one keeps a client per address
            await _answer(world, answers)
    else:
        await _answer(world, answers)


async def _answer(world: TasksetHost | HarnessTaskset, answers: Any) -> None:
    """Read requests from standard input and answer each concurrently, until EOF."""
    reader = asyncio.StreamReader(limit=1 << 26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    running = set()

    async def one(request: dict[str, Any]) -> None:
        try:
            reply: dict[str, Any] = {"said": await world.answer_request(request)}
        except Exception as error:  # any exception of an environment is reported by name
            cause = error.__cause__ or error
            text = str(error) if isinstance(error, TasksetError) else f"{type(cause).__name__}: {cause}"
            reply = {"error": text, "refused": isinstance(error, TasksetError)}
        print(json.dumps({"number": request["number"], **reply}), file=answers, flush=True)

    while line := await reader.readline():
        task = asyncio.create_task(one(json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)


def run_bridge() -> None:
    """Load the taskset of the command line and answer requests until EOF."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    options = json.loads(sys.argv[1])
    try:
        arguments = (options["taskset"], options["options"], options["most"], options["runtime"])
        world = TasksetHost(*arguments) if options.get("env") is None else HarnessTaskset(*arguments, options["env"])
    except Exception as error:
        text = str(error) if isinstance(error, TasksetError) else f"{type(error).__name__}: {error}"
        print(json.dumps({"error": " ".join(text.split())}), file=answers, flush=True)
        return
    print(
        json.dumps({"tasks": _list_tasks(world.tasks) if options["tasks"] else len(world.tasks)}),
        file=answers,
        flush=True,
    )
    if not options["tasks"]:
        asyncio.run(_serve(world, answers))


if __name__ == "__main__":
    run_bridge()
