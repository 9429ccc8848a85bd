"""Episodes of an exported environment: one call of a tool, or one text, per action.

An exported folder has the file `environment.json` with the name and the options of the environment, and its tasks. The
code in the folder plays episodes with the classes of this module, so that the rules of the environment exist once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from whetstone.capabilities import implements_protocol
from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.environments.game_environment import as_environment, is_game
from whetstone.environments.protocol import (
    OPTIONAL_OF_USERS,
    Environment,
    Observation,
    StepResult,
    optional_protocols,
)
from whetstone.environments.registry import ENVIRONMENTS
from whetstone.environments.remote.serialization import task_from_wire, task_to_wire
from whetstone.environments.user_simulators import USERS
from whetstone.errors import EpisodeError, RecipeError, TaskError
from whetstone.plugins import bind_component, find_part
from whetstone.tools import TOOLS
from whetstone.tools.protocol import OPTIONAL as TOOL_OPTIONAL
from whetstone.tools.protocol import GivesVerdict
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import Task

EXPORT_FILE = "environment.json"
_VERSION = 1

Pays = Literal["success", "score"]
"""Reward of an episode: 1 for success, or the score of the verdict, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class ExportedAction:
    """Action of an agent: a call of a tool, or a text."""

    text: str = ""
    """Message without a call; empty if there is a call."""
    tool: str = ""
    """Name of the tool; empty for a text."""
    arguments: str = "{}"
    """Arguments of the call, as a JSON object."""

    def to_message(self) -> Message:
        """Return the action as a message of an agent."""
        return assistant("", ToolCall(self.tool, self.arguments, "call_0")) if self.tool else assistant(self.text)

    @classmethod
    def from_message(cls, message: Message) -> list[ExportedAction]:
        """Return the actions of a message: its calls in order, or its text."""
        calls = [cls(tool=call.name, arguments=call.arguments) for call in message.tool_calls]
        return calls or [cls(text=message.text)]


@dataclass(frozen=True, slots=True)
class ExportedTask:
    """Task of an exported environment."""

    task: Task
    seed: int
    """Seed of the episode."""
    opening: tuple[Message, ...] = ()
    """Messages at the start of the episode."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools at the start of the episode."""


@dataclass(frozen=True, slots=True)
class Export:
    """Environment by name, with its tasks."""

    environment: str
    """Name of the environment, or `package.module:Class`."""
    options: Mapping[str, Any]
    tasks: tuple[ExportedTask, ...]
    pays: Pays = "success"

    def to_json(self) -> str:
        """Return the content of `environment.json`.

        Raises:
            RecipeError: A task or an option has a value that JSON cannot represent.
        """
        tasks = [
            {
                "task": task_to_wire(one.task),
                "seed": one.seed,
                "messages": [message.to_openai() for message in one.opening],
                "tools": [tool.to_openai() for tool in one.tools],
            }
            for one in self.tasks
        ]
        header = {"format": _VERSION, "environment": self.environment, "options": self.options, "pays": self.pays}
        try:
            return json.dumps({**header, "tasks": tasks}, ensure_ascii=False, indent=1) + "\n"
        except TypeError as error:
            raise RecipeError(f"{self.environment}: its tasks or options cannot be written as JSON: {error}") from None


def read_export(path: Path | str) -> Export:
    """Read `environment.json` of an exported folder.

    Raises:
        TaskError: The file is missing, or was written by another version.
    """
    file = Path(path)
    try:
        row = json.loads(file.read_text(encoding="utf-8"))
        if row["format"] != _VERSION:
            raise TaskError(f"{file}: format {row['format']}, expected {_VERSION}; export the environment again")
        tasks = tuple(
            ExportedTask(
                task_from_wire(one["task"]),
                int(one["seed"]),
                tuple(map(Message.from_openai, one["messages"])),
                tuple(map(ToolSpec.from_openai, one["tools"])),
            )
            for one in row["tasks"]
        )
        return Export(str(row["environment"]), dict(row["options"]), tasks, row["pays"])
    except OSError as error:
        raise TaskError(f"{file}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise TaskError(f"{file}: not an exported environment: {error}") from None


@dataclass(frozen=True, slots=True)
class ExportedResult:
    """Result of one action."""

    text: str
    """Text that the agent reads."""
    messages: tuple[Message, ...] = ()
    """Messages with that text."""
    failed: bool = False
    """Whether the call of a tool failed."""
    reward: float | None = None
    """Reward of the action; that of the whole episode if it is over."""
    done: bool = False
    """Whether the episode is over."""


class ExportedEpisode:
    """One episode of an exported environment.

    Args:
        export: The environment.
        index: Number of the task, from 0; higher numbers repeat the tasks.
    """

    def __init__(self, export: Export, index: int) -> None:
        self._export = export
        self._task = export.tasks[index % len(export.tasks)]
        self._environment: Environment | None = None
        self.opening: tuple[Message, ...] = ()
        """Messages at the start of the episode."""
        self.tools: tuple[ToolSpec, ...] = ()
        """Tools that are available now."""
        self.done = False
        """Whether the episode is over."""

    async def start(self) -> str:
        """Start the episode and return the text of its first messages."""
        self._environment = environment = await call_user_function(self._create_environment)
        first: Observation = await call_user_function(environment.reset, self._task.task, seed=self._task.seed)
        self.opening, self.tools = first.messages, first.tools
        return show_messages(first.messages)

    def _create_environment(self) -> Environment:
        part = find_part("environment", self._export.environment, ENVIRONMENTS, optional=optional_protocols)
        options = bind_named_options(self._export.options)
        environment: Environment = (as_environment(part) if is_game(part) else part)(**options)
        return environment

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> ExportedResult:
        """Call a tool, or send a text if the tool is the one of `list_offered_tools` for texts."""
        if name == find_reply_name(self.tools):
            return await self.execute_action(ExportedAction(text=str(arguments.get("message", ""))))
        return await self.execute_action(ExportedAction(tool=name, arguments=json.dumps(arguments)))

    async def execute_action(self, action: ExportedAction) -> ExportedResult:
        """Execute an action and return its result.

        The reward of the last action is that of the episode. An action after the end has no effect.

        Raises:
            EpisodeError: The episode was not started.
        """
        if self._environment is None:
            raise EpisodeError("an action was sent before the episode was started")
        if self.done:
            return ExportedResult("error: the episode is over", failed=True, done=True)
        result: StepResult = await call_user_function(self._environment.step, action.to_message())
        self.tools = result.observation.tools or self.tools
        self.done = result.ended is not None
        failed = any(call.outcome != "ok" for call in result.calls)
        reward = await self.compute_reward() if self.done else result.reward
        messages = result.observation.messages
        return ExportedResult(show_messages(messages), messages, failed, reward, self.done)

    async def compute_reward(self) -> float:
        """Return the reward of the episode so far, from the verdict of the environment.

        Raises:
            EpisodeError: The environment has no verdict, or the episode was not started.
        """
        if self._environment is None or not implements_protocol(self._environment, GivesVerdict):
            raise EpisodeError(f"{self._export.environment} has no verdict")
        verdict = await call_user_function(self._environment.verdict)
        success = float(bool(verdict.get("success")))
        return float(verdict.get("score", success)) if self._export.pays == "score" else success

    async def close(self) -> None:
        """Close the environment."""
        environment, self._environment = self._environment, None
        if environment is not None:
            await call_user_function(environment.close)


def bind_named_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of an environment with its named tools and its named user as components.

    Raises:
        RecipeError: A tool or the user does not exist.
    """
    values = dict(options)
    if isinstance(values.get("tools"), list):
        values["tools"] = [bind_component("tool", tool, TOOLS, optional=TOOL_OPTIONAL) for tool in values["tools"]]
    if "user" in values:
        values["user"] = bind_component("user", values["user"], USERS, optional=OPTIONAL_OF_USERS)
    return values


async def replay_export(export: Export, index: int, actions: Iterable[ExportedAction]) -> float:
    """Play recorded actions of a task and return the reward of the episode.

    Args:
        export: The environment.
        index: Number of the task.
        actions: Actions in order; those after the end of the episode are ignored.
    """
    episode = ExportedEpisode(export, index)
    try:
        await episode.start()
        for action in actions:
            if (await episode.execute_action(action)).done:
                break
        return await episode.compute_reward()
    finally:
        await episode.close()


def list_offered_tools(tools: Sequence[ToolSpec]) -> list[ToolSpec]:
    """Return tools and one that sends a text, for formats whose only actions are calls."""
    parameters = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
    return [*tools, ToolSpec(find_reply_name(tools), "Send a message without a call, such as the answer.", parameters)]


def find_reply_name(tools: Sequence[ToolSpec]) -> str:
    """Return the name of the tool that sends a text: `reply`, unless a tool has this name."""
    return "reply_to_user" if any(tool.name == "reply" for tool in tools) else "reply"


def show_messages(messages: Iterable[Message]) -> str:
    """Return the texts of messages, separated by a line break."""
    return "\n".join(text for message in messages if (text := message.text))
