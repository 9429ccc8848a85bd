"""Coding agents as they are: each writes two files and starts two sub-agents, served and as an environment.

python -m benchmarks coding_agents [NAME …] --write [--image IMAGE]

The agents are found on the PATH. With an image, they run in containers only, found on its PATH. A scripted model plays
a fixed conversation; the answers of the two sub-agents are withheld until both requests have arrived, so that they only
finish if they are served at the same time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from whetstone.assembly import assemble
from whetstone.chat import Chat, Message, ToolCall, assistant
from whetstone.environments.coding_agents import fill_placeholders, find_coding_agent
from whetstone.environments.external_agent import ExternalAgent
from whetstone.errors import RecipeError
from whetstone.inference import Generation
from whetstone.inference.protocol import EngineCapabilities, GenerateRequest
from whetstone.recipe import load_recipe
from whetstone.rollout.episode_inputs import EpisodeLimits
from whetstone.rollout.protocol import Action, ActorInput
from whetstone.rollout.runner import run_episode
from whetstone.sandbox.containers.container_runtime import ContainerRuntime
from whetstone.serving import CompletionService, EpisodeRegistry, Server, build_serving_app
from whetstone.serving.http_server import build_server
from whetstone.serving.trainable_tokens import recorded_episodes
from whetstone.trajectory import Task, Tokens, Trajectory
from whetstone.trajectory_json import encode_trajectory

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
AGENTS = ("claude-code", "codex", "opencode", "mini-swe-agent")
FILES = {"one.txt": "first\n", "two.txt": "second\n"}
TWO_FILES, HELPERS = "Write the files one.txt and two.txt.", "Ask two helpers for the parts left and right."
WRITE = [f"printf '{text.strip()}\\n' > {name}" for name, text in FILES.items()]
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
PARTS = ("left", "right")
CONTEXT_LENGTH = 80_000
POLICY = (
    "policy.tiny={vocab_size: 2000, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16, "
    f"context_length: {CONTEXT_LENGTH}}}"
)


def call(name: str, **arguments: Any) -> ToolCall:
    """Return a tool call."""
    return ToolCall(name, json.dumps(arguments))


def run_command(agent: str, command: str) -> Message:
    """Return a message in which an agent runs a shell command."""
    tools = {
        "claude-code": lambda: call("Bash", command=command, description="Run"),
        "codex": lambda: call("exec_command", cmd=command),
        "opencode": lambda: call("bash", command=command, description="Run"),
        "mini-swe-agent": lambda: call("bash", command=command),
    }
    return Message("assistant", (), (tools[agent](),))


def start_helpers(agent: str) -> Message:
    """Return a message that starts two sub-agents at once."""
    prompts = [f"Report the part {part}." for part in PARTS]
    if agent == "codex":  # a fork: the sub-agent has the context of its parent
        calls = [call("spawn_agent", message=prompt, fork_context=True) for prompt in prompts]
    elif agent == "claude-code":
        calls = [
            call("Agent", description="Report", prompt=prompt, subagent_type="general-purpose") for prompt in prompts
        ]
    else:
        calls = [call("task", description="Report", prompt=prompt, subagent_type="general") for prompt in prompts]
    return Message("assistant", (), tuple(calls))


@dataclass
class ScriptedModel:
    """Model that plays a fixed conversation: it writes two files, or starts two helpers."""

    agent: str
    sampled: list[tuple[int, ...]] = field(default_factory=list)
    """Tokens of each answer."""
    most_at_once: int = 0
    """Largest number of requests without an answer."""
    _waiting: int = 0
    _helpers: int = 0
    _both: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, text: str, chat: Chat) -> tuple[int, ...]:
        """Return the tokens of the answer to a rendered context."""
        self._waiting += 1
        self.most_at_once = max(self.most_at_once, self._waiting)
        try:
            message = await self._answer(text)
        finally:
            self._waiting -= 1
        ids = tuple(chat.write(message, ()))
        self.sampled.append(ids)
        return ids

    async def _answer(self, text: str) -> Message:
        last_user = text.rpartition("<|user|>")[2]
        part = next((part for part in PARTS if f"Report the part {part}." in last_user), None)
        if part is not None and "<|assistant|>" in last_user and last_user.count("<|assistant|>") == 1:
            self._helpers += 1
            if self._helpers == len(PARTS):
                self._both.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(60):
                    await self._both.wait()
            return assistant(f"The part {part} is done.")
        turn = text.count("<|assistant|>") - 1
        if HELPERS in text:
            if turn == 0:
                return start_helpers(self.agent)
            names = re.findall(r'"agent_id"\s*:\s*"([^"]+)"', text)
            if self.agent == "codex" and turn == 1:
                return Message("assistant", (), (call("wait_agent", targets=list(dict.fromkeys(names))),))
            return assistant("Both parts are done.")
        if TWO_FILES not in text:
            return assistant("Nothing to do.")
        steps = [run_command(self.agent, command) for command in WRITE]
        final = run_command(self.agent, SUBMIT) if self.agent == "mini-swe-agent" else assistant("Both are written.")
        return [*steps, final][min(turn, len(steps))]


class ScriptedEngine:
    """Engine of `whetstone serve` that samples the tokens of a scripted model."""

    capabilities, version = EngineCapabilities(), 0

    def __init__(self, model: ScriptedModel, chat: Chat) -> None:
        self.model, self.chat = model, chat

    async def generate(self, request: GenerateRequest) -> Generation:
        """Return the answer to a prompt, in pieces if the request is streamed."""
        text = self.chat.tokenizer.decode(request.prompt.ids, skip_special_tokens=False)
        ids = await self.model.answer(text, self.chat)
        if request.on_tokens is not None:
            for count in range(1, len(ids)):
                await asyncio.sleep(0)
                request.on_tokens(ids[:count])
        logprobs = (-0.5,) * len(ids)
        return Generation(ids, logprobs, (0.0,) * len(ids), (0,) * len(ids), "stop", 0.0, logprobs)

    def forget(self, episode: str) -> None:
        """Do nothing: nothing is stored."""

    async def close(self) -> None:
        """Do nothing."""


class ScriptedActor:
    """Actor of an episode that answers as a scripted model."""

    def __init__(self, model: ScriptedModel, chat: Chat) -> None:
        self.model, self.chat = model, chat

    async def act(self, moment: ActorInput) -> Action:
        """Return the tokens of the scripted answer."""
        text = self.chat.tokenizer.decode(moment.context.ids, skip_special_tokens=False)
        ids = await self.model.answer(text, self.chat)
        nothing = (0.0,) * len(ids)
        return Action(
            Tokens.from_samples(ids, logprobs=(-0.5,) * len(ids), versions=(0,) * len(ids), entropies=nothing)
        )

    def leave(self, episode: str) -> None:
        """Do nothing: nothing is stored."""


@cache
def build_assembly() -> Any:
    """Return the components of a tiny policy with a long context."""
    return assemble(load_recipe("demo", [POLICY, "rollout.max_new_tokens=24", "ablations=null", "chat.format=hermes"]))


def describe_tokens(model: ScriptedModel, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Compare the recorded tokens with those that were sampled, and count the trainable ones."""
    recorded = sorted(turn.action.ids for each in trajectories for turn in each.turns)
    segments = [segment for each in trajectories for segment in each.segments()]
    return {
        "answers": len(model.sampled),
        "sampled_tokens": sum(map(len, model.sampled)),
        "are_equal": recorded == sorted(model.sampled),
        "trainable_tokens": sum(sum(segment.action_mask) for segment in segments),
        "segments": len(segments),
        "at_once": model.most_at_once,
    }


async def play_as_environment(
    agent: str, prompt: str, folder: Path, sandbox: dict[str, str] | None = None
) -> dict[str, Any]:
    """Run an agent as `environment: agent` with a scripted actor."""
    chat, model = build_assembly().chat, ScriptedModel(agent)
    trajectory = await run_episode(
        Task("t", prompt),
        environment=ExternalAgent(program=agent, workspace=str(folder), sandbox=sandbox or False),
        actor=ScriptedActor(model, chat),
        chat=chat,
        limits=EpisodeLimits(max_turns=40, context_length=CONTEXT_LENGTH, timeout_seconds=300.0),
        id="episode",
        seed=0,
    )
    ended = {"ended": str(trajectory.ended), "files": trajectory.final.get("files") == FILES}
    return {
        **describe_tokens(model, [trajectory]),
        **ended,
        "error": trajectory.error or trajectory.final.get("failed"),
    }


async def play_in_container(agent: str, prompt: str, folder: Path, image: str) -> dict[str, Any]:
    """Run an agent as `environment: agent` in a podman container with a scripted actor."""
    return await play_as_environment(agent, prompt, folder, sandbox={"container": "podman", "image": image})


async def play_with_tiny_policy(agent: str, prompt: str, folder: Path) -> dict[str, Any]:
    """Run an agent as `environment: agent` with a tiny random policy, whose first answer is cut after 24 tokens."""
    assembly, sampled = build_assembly(), []
    engine = assembly.build_engine()
    generate = engine.generate

    async def observe_generation(request: GenerateRequest) -> Generation:
        generation: Generation = await generate(request)
        sampled.append(tuple(generation.tokens))
        return generation

    engine.generate = observe_generation
    try:
        trajectory = await run_episode(
            Task("t", prompt),
            environment=ExternalAgent(program=agent, workspace=str(folder)),
            actor=assembly.policy_actor(engine, temperature=1.0),
            chat=assembly.chat,
            limits=EpisodeLimits(max_turns=2, context_length=CONTEXT_LENGTH, timeout_seconds=300.0),
            id="episode",
            seed=0,
        )
    finally:
        await engine.close()
    model = ScriptedModel(agent, sampled, most_at_once=1)
    return {**describe_tokens(model, [trajectory]), "ended": str(trajectory.ended), "files": False}


async def play_served(agent: str, prompt: str, folder: Path) -> dict[str, Any]:
    """Run an agent against the server of `whetstone serve --record` with a scripted engine."""
    assembly, model = build_assembly(), ScriptedModel(agent)
    over: list[Any] = []
    engine: Any = ScriptedEngine(model, assembly.chat)
    episodes = EpisodeRegistry(over.append)
    server = Server(CompletionService(engine, assembly.chat, context_length=CONTEXT_LENGTH), episodes, name="policy")
    bound = socket.create_server(("127.0.0.1", 0))
    http = build_server(build_serving_app(server))
    http.capture_signals = contextlib.nullcontext
    serving = asyncio.ensure_future(http.serve(sockets=[bound]))
    host = f"http://127.0.0.1:{bound.getsockname()[1]}/episodes/one"
    known = find_coding_agent(agent)
    values = {"task": prompt, "base_url": f"{host}/v1", "host_url": host}
    home, work = folder / "home", folder / "work"
    for each in (home, work):
        each.mkdir()
    keys = {"OPENAI_BASE_URL": f"{host}/v1", "OPENAI_API_BASE": f"{host}/v1", "OPENAI_API_KEY": "none"}
    keys |= {"ANTHROPIC_BASE_URL": host, "ANTHROPIC_API_KEY": "none", "HOME": str(home), "PWD": str(work)}
    own = {name: fill_placeholders(value, values) for name, value in known.variables.items()}
    process = await asyncio.create_subprocess_exec(
        *(fill_placeholders(part, values) for part in known.command),
        cwd=work,
        env={**os.environ, **keys, **own},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(300):
            code = await process.wait()
    except TimeoutError:
        process.kill()
        code = -1
    episodes.close()
    http.should_exit = True
    await serving
    record = folder / "said.jsonl"
    record.write_bytes(b"".join(encode_trajectory(each) + b"\n" for each in over))
    why = recorded_episodes(record)
    files = {name: (work / name).read_text() for name in FILES if (work / name).is_file()}
    return {
        **describe_tokens(model, over),
        "why_trainable": sum(each.trained for each in why),
        "files": files == FILES,
        "exit": code,
    }


async def check_agent(agent: str, image: str = "") -> dict[str, Any]:
    """Run all parts of one agent; with an image, those in a container."""
    results: dict[str, Any] = {}
    parts: dict[str, tuple[Callable[..., Any], str]] = {
        "served": (play_served, TWO_FILES),
        "environment": (play_as_environment, TWO_FILES),
        "policy": (play_with_tiny_policy, TWO_FILES),
    }
    if agent != "mini-swe-agent":  # it has no sub-agents
        parts |= {"served_helpers": (play_served, HELPERS), "environment_helpers": (play_as_environment, HELPERS)}
    if image:
        parts = {"container": (partial(play_in_container, image=image), TWO_FILES)}
    for name, (play, prompt) in parts.items():
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            began = time.time()
            results[name] = await play(agent, prompt, Path(folder)) | {"seconds": round(time.time() - began, 1)}
            print(agent, name, results[name], flush=True)
    command = find_coding_agent(agent, is_installed=not image).command[0]
    return {"version": await asyncio.to_thread(read_version, command, image), **results}


def read_version(program: str, image: str = "") -> str:
    """Return the version that a program prints, in a container of the image if one is named."""
    variables = {**os.environ, "HOME": "/nonexistent"}
    words = [program, "--version"]
    if image:
        runtime = ContainerRuntime("podman")
        words = [*runtime.build_command("run", "--rm", "--network=none", *runtime.isolation_arguments()), image, *words]
        words[-3:-3] = ["--ulimit", "nofile=1024:1024"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=variables)
    version = re.search(r"\d+\.\d+\.\d+", done.stdout + done.stderr)
    return version[0] if version else ""


def page(results: dict[str, Any]) -> str:
    """Return the page of the results."""
    lines = [
        "# Coding agents",
        "",
        "Written by `python -m benchmarks coding_agents --write`. Each agent runs as installed, in a temporary",
        "folder with a new home, or in a podman container (`container`, with `--image`) that reaches only its",
        "model. A scripted model plays a fixed conversation: the agent writes two files, or starts two sub-agents",
        "whose answers are withheld until both requests have arrived.",
        "Tiny policy: a random Llama, whose first answer is cut after 24 tokens.",
        "",
        "| agent | version | run | files | answers | sampled tokens | recorded = sampled | trainable | segments "
        "| at once | s |",
        "| --- | --- | --- | --- | --: | --: | --- | --: | --: | --: | --: |",
    ]
    names = {"served": "`serve`, files", "environment": "environment, files", "container": "container, files"}
    names |= {"policy": "environment, tiny policy"}
    names |= {"served_helpers": "`serve`, sub-agents", "environment_helpers": "environment, sub-agents"}
    for agent, result in results.items():
        for key, name in names.items():
            if (run := result.get(key)) is None:
                continue
            files = "-" if "helpers" in key or key == "policy" else "yes" if run["files"] else "no"
            lines.append(
                f"| {agent} | {result['version']} | {name} | {files} | {run['answers']} | {run['sampled_tokens']} "
                f"| {'yes' if run['are_equal'] else 'no'} | {run['trainable_tokens']} | {run['segments']} "
                f"| {run['at_once']} | {run['seconds']:.0f} |"
            )
    lines += [
        "",
        "Recorded = sampled: the recorded answers are the sampled ones, token by token, each once. At once: largest",
        "number of requests that wait for an answer. The seconds are those of a machine that also computed other",
        "things.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run the agents and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("agents", nargs="*", help=f"names [{' '.join(AGENTS)}]")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--image", default="", help="podman image with the agents; the other runs are kept")
    arguments = parser.parse_args()
    stored = RESULTS / "raw" / "coding_agents.json"
    results: dict[str, Any] = json.loads(stored.read_text()) if arguments.image and stored.is_file() else {}
    for agent in arguments.agents or AGENTS:
        try:
            results[agent] = results.get(agent, {}) | asyncio.run(check_agent(agent, arguments.image))
        except RecipeError as error:
            print(error)
    if arguments.write:
        stored.write_text(json.dumps(results, indent=1) + "\n")
        (RESULTS / "coding_agents.md").write_text(page(results))
    print(page(results))


if __name__ == "__main__":
    main()
