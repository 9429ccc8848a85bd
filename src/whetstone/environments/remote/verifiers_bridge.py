"""Runs where the package `verifiers` is: its tasksets, tools and rewards, asked in lines of JSON over standard streams.

A program of its own that imports nothing of ours, so that the package may live in another environment than Whetstone,
with other versions of what both need. `verifiers.py` asks it.

Easy to get wrong: whatever an environment prints would stand among the answers. So the stream they go to is put aside
first, and what is printed goes where complaints go.
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


class Refused(Exception):
    """This cannot be played here; one line says why."""


class World:
    """A taskset.

    Args:
        taskset: Its id, as it is installed.
        options: Its configuration.
        most: Tasks that are read of it.
        runtime: `subprocess`: what asks for a runtime gets a folder of this machine; empty: it is refused.
    """

    def __init__(self, taskset: str, options: dict[str, Any], most: int, runtime: str) -> None:
        from verifiers.v1.envs.single_agent import SingleAgentEnv
        from verifiers.v1.utils.loaders import environment_class, load_taskset, taskset_config_type

        env = environment_class(taskset)
        if env is not SingleAgentEnv:
            raise Refused(f"{env.__name__} plays its agents itself, against an endpoint; serve one and record it")
        config = taskset_config_type(taskset).model_validate({**options, "id": taskset})
        self.taskset = load_taskset(config)
        self.tasks = list(itertools.islice(iter(self.taskset), most))
        if not self.tasks:
            raise Refused("it has no tasks")
        self.runtime = runtime
        self.shared = list(type(self.taskset).toolsets(config))
        self.episodes: dict[str, Episode] = {}
        self._check(self.tasks[0])

    def _check(self, task: Any) -> None:
        from verifiers.v1.task import Task

        if task.NEEDS_CONTAINER:
            raise Refused("its tasks need a container, which only its own harness starts")
        if task.config.judges:
            raise Refused("its rewards ask a judge at an endpoint; leave `judges` out of its `task` options")
        hooks = [fn for kind in ("metric", "reward") for fn in task.hooks(kind)]
        takes = [fn.__name__ for fn in hooks if "runtime" in inspect.signature(fn).parameters]
        takes += [name for name in ("setup", "finalize") if getattr(type(task), name) is not getattr(Task, name)]
        if takes and not self.runtime:
            raise Refused(
                f"{', '.join(takes)} ask for a runtime; `runtime: subprocess` gives them this machine, unconfined"
            )

    async def answer(self, asked: dict[str, Any]) -> Any:
        """What comes of one question."""
        if asked["do"] == "begin":
            task = self.tasks[asked["index"]] if asked["index"] < len(self.tasks) else None
            if task is None or task.key != asked["key"]:
                raise Refused(f"task {asked['index']} is another one than when tasks were read")
            episode = self.episodes[asked["episode"]] = Episode(task, self.runtime)
            return await episode.begin(self.shared)
        episode = self.episodes[asked["episode"]]
        if asked["do"] == "call":
            return await episode.call(asked["name"], asked["arguments"])
        if asked["do"] == "score":
            return await episode.score(asked["messages"])
        await self.episodes.pop(asked["episode"]).end()
        return None


class Played:
    """A taskset that its own environment and harness play, against an address.

    Args:
        env: The configuration of the environment, by its own names; roles that name no runtime run on this machine.
        others: As of `World`.
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
            raise Refused("it has no tasks")
        for name, harness in config.agent_harnesses().items():
            loaded = self.env._harnesses[name]
            if loaded.EXECUTES_CODE and getattr(config, name).runtime.type == "subprocess" and not runtime:
                raise Refused(
                    f"the harness {harness.id} runs what the model says; `runtime: subprocess` lets it do so on this "
                    f"machine, unconfined, `env: {{{name}: {{runtime: …}}}}` elsewhere"
                )
        self.playing: dict[str, asyncio.Task[Any]] = {}

    async def answer(self, asked: dict[str, Any]) -> Any:
        """What comes of one question: an episode's end, or that it is given up."""
        if asked["do"] == "end":
            playing = self.playing.get(asked["episode"])
            if playing is not None:
                playing.cancel()
            return None
        task = self.tasks[asked["index"]] if asked["index"] < len(self.tasks) else None
        if task is None or task.key != asked["key"]:
            raise Refused(f"task {asked['index']} is another one than when tasks were read")
        playing = self.playing[asked["episode"]] = asyncio.ensure_future(self._play(task, asked["base_url"]))
        try:
            return await playing
        except asyncio.CancelledError:
            return {"failed": "given up"}
        finally:
            del self.playing[asked["episode"]]

    async def _play(self, task: Any, base_url: str) -> dict[str, Any]:
        from verifiers.v1.clients import EvalClientConfig, ModelContext

        client = EvalClientConfig(base_url=base_url, api_key_var="OPENAI_API_KEY")
        episode = await self.env.run_episode(task, ModelContext("policy", client))
        errors = [error for one in (episode, *episode.traces) for error in one.errors]
        if not episode.ok and errors:
            return {"failed": " ".join(str(errors[-1].message).split())[:500]}
        ours = [trace for trace in episode.traces if trace.agent.trainable]
        if not ours:
            return {"failed": "no trace of it is trainable"}
        parts: dict[str, float] = {}
        for trace in ours:
            rewards = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
            values = {**{name: value for name, value in trace.metrics.items() if value is not None}, **rewards}
            parts |= values if len(ours) == 1 else {f"{trace.agent.name}_{n}": value for n, value in values.items()}
        return {"reward": sum(trace.reward for trace in ours) / len(ours), "parts": parts}


class Episode:
    """One task under way."""

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

    async def begin(self, shared: list[Any]) -> dict[str, Any]:
        """The opening messages and the tools."""
        from mcp.server.mcpserver import MCPServer
        from verifiers.v1.utils.decorators import invoke

        if self._wants_runtime:
            from verifiers.v1.runtimes import SubprocessConfig, make_runtime

            self._runtime = make_runtime(SubprocessConfig())
            await self._runtime.start()
            await invoke(self.task.setup, {"trace": self.trace, "runtime": self._runtime})
        tools = []
        for toolset in (*type(self.task).toolsets(self.task.config), *shared):
            # its state is the trace's, which is at hand here: nothing has to be fetched from elsewhere
            toolset._pull_state, toolset._push_state = self._state, _nothing
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
        said = [] if prompt is None else [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        messages = [one if isinstance(one, dict) else one.model_dump(mode="json") for one in said]
        if self.task.data.system_prompt:
            messages.insert(0, {"role": "system", "content": self.task.data.system_prompt})
        return {"messages": messages, "tools": tools}

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What a tool says, and whether that is an error."""
        server, own = self._servers[name]
        try:
            said = await server.call_tool(own, arguments)
        except Exception as error:  # a tool's, which the model may have brought about
            return {"text": f"{type(error).__name__}: {error}", "failed": True}
        content = said.model_dump(mode="json", by_alias=False)
        texts = [part["text"] for part in content["content"] if part["type"] == "text"]
        return {"text": "\n".join(texts), "failed": bool(content["is_error"])}

    async def score(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The rewards of a conversation, each by its name."""
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

    async def end(self) -> None:
        """Let go of what it holds."""
        if self._runtime is not None:
            await self._runtime.stop()

    async def _state(self) -> Any:
        return self.trace.state


async def _nothing(before: bytes) -> None:
    pass


def _listed(tasks: list[Any]) -> list[dict[str, Any]]:
    """Every task: what it is called, what makes it itself, and what it asks."""
    return [
        {"id": str(task.data.id or task.data.name or index), "key": task.key, "prompt": task.data.prompt_text}
        for index, task in enumerate(tasks)
    ]


async def _serve(world: World | Played, answers: Any) -> None:
    if isinstance(world, Played):
        async with world.env.serving():
            world.env._interception = None  # one for each run instead: the shared one keeps a client for each address
            await _answer(world, answers)
    else:
        await _answer(world, answers)


async def _answer(world: World | Played, answers: Any) -> None:
    reader = asyncio.StreamReader(limit=1 << 26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    under_way = set()

    async def one(asked: dict[str, Any]) -> None:
        try:
            said: dict[str, Any] = {"said": await world.answer(asked)}
        except Exception as error:  # whatever an environment raises is its own failure, told by name
            cause = error.__cause__ or error
            text = str(error) if isinstance(error, Refused) else f"{type(cause).__name__}: {cause}"
            said = {"error": text, "refused": isinstance(error, Refused)}
        print(json.dumps({"number": asked["number"], **said}), file=answers, flush=True)

    while line := await reader.readline():
        task = asyncio.create_task(one(json.loads(line)))
        under_way.add(task)
        task.add_done_callback(under_way.discard)


def main() -> None:
    """Read what is asked for from the command line, and answer until nobody asks."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked = json.loads(sys.argv[1])
    try:
        given = (asked["taskset"], asked["options"], asked["most"], asked["runtime"])
        world = World(*given) if asked.get("env") is None else Played(*given, asked["env"])
    except Exception as error:
        text = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
        print(json.dumps({"error": " ".join(text.split())}), file=answers, flush=True)
        return
    print(json.dumps({"tasks": _listed(world.tasks) if asked["tasks"] else len(world.tasks)}), file=answers, flush=True)
    if not asked["tasks"]:
        asyncio.run(_serve(world, answers))


if __name__ == "__main__":
    main()
