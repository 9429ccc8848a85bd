"""Writer of environments as OpenEnv server, verifiers taskset or Harbor folders.

Tasks are fixed in `environment.json`. Before anything is written, the expert plays each task and its actions are
repeated, so that an environment that cannot be exported is refused with the reason.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Any, Literal

from whetstone.atomic_write import new_folder
from whetstone.capabilities import implements_protocol
from whetstone.chat import Message, ToolSpec
from whetstone.environments.exchange.exported_episode import (
    EXPORT_FILE,
    Export,
    ExportedAction,
    ExportedEpisode,
    ExportedTask,
    Pays,
    replay_export,
    show_messages,
)
from whetstone.errors import RecipeError, TaskError
from whetstone.tasks.protocol import Expert, Source
from whetstone.trajectory import Task

ExportFormat = Literal["openenv", "verifiers", "harbor"]
_TEMPLATES = resources.files("whetstone") / "environments" / "exchange" / "project-templates"
_MAX_ACTIONS = 200


@dataclass(frozen=True, slots=True)
class WrittenExport:
    """Result of an export."""

    files: int
    """Number of files."""
    tasks: int
    solved: int
    """Number of tasks that the expert of the task source solves; 0 without an expert."""


@dataclass(frozen=True, slots=True)
class _PlayedTask:
    """Task with the actions of its expert."""

    exported: ExportedTask
    actions: tuple[ExportedAction, ...]
    """Actions of the expert; empty if it does not solve the task, or if there is none."""


def write_export(
    folder: Path,
    kind: ExportFormat,
    *,
    environment: str,
    options: Mapping[str, Any],
    source: Source,
    num_tasks: int,
    held_out: bool = False,
    pays: Pays = "success",
    image: str = "whetstone",
) -> WrittenExport:
    """Write an environment in an exchange format.

    Args:
        folder: New folder.
        kind: Format.
        environment: Name of the environment, or `package.module:Class`.
        options: Options of the environment; values that JSON can represent.
        source: Source of the tasks.
        num_tasks: Number of tasks.
        held_out: Export held-out tasks instead of training tasks.
        pays: Reward: success, or the score of the verdict.
        image: Image with Whetstone, for containers.

    Raises:
        RecipeError: The folder exists, or the environment cannot be exported.
    """
    if folder.exists():
        raise RecipeError(f"{folder}: exists already, nothing was written; choose another name")
    tasks = list(source.held_out(num_tasks)) if held_out else [source.task(index) for index in range(num_tasks)]
    tasks = list({task.id: task for task in tasks}.values())
    if not tasks:
        raise RecipeError(f"{environment}: the source has no {'held-out ' if held_out else ''}tasks to export")
    export = Export(environment, options, tuple(map(ExportedTask, tasks, range(len(tasks)))), pays)
    played = asyncio.run(_play_tasks(export, source))
    export = Export(environment, options, tuple(one.exported for one in played), pays)
    _check_export(export, kind)
    writers = {"openenv": _write_openenv, "verifiers": _write_verifiers, "harbor": _write_harbor}
    with new_folder(folder) as aside:
        writers[kind](aside, folder.name, export, played, image)
        files = sum(file.is_file() for file in aside.rglob("*"))
    return WrittenExport(files, len(played), sum(bool(one.actions) for one in played))


async def _play_tasks(export: Export, source: Source) -> list[_PlayedTask]:
    """Start each task, and play it with the expert of its source."""
    played = []
    for index, one in enumerate(export.tasks):
        episode = ExportedEpisode(export, index)
        try:
            await episode.start()
            exported = ExportedTask(one.task, one.seed, episode.opening, episode.tools)
            actions = await _play_expert(episode, one.task, source) if implements_protocol(source, Expert) else ()
            await episode.compute_reward()  # refuses an environment without a verdict before anything is written
        finally:
            await episode.close()
        if actions and await replay_export(export, index, actions) < 1:
            raise RecipeError(
                f"{export.environment}: the expert solves {one.task.id}, but its repeated actions do not; episodes "
                "with random events cannot be exported"
            )
        played.append(_PlayedTask(exported, actions))
    return played


async def _play_expert(episode: ExportedEpisode, task: Task, source: Expert) -> tuple[ExportedAction, ...]:
    """Return the actions of the expert if they solve the task, else none."""
    conversation: list[Message] = list(episode.opening)
    actions: list[ExportedAction] = []
    while not episode.done and len(actions) < _MAX_ACTIONS:
        try:
            message = source.demonstrate(task, conversation, episode.tools)
        except TaskError:
            return ()
        conversation.append(message)
        for action in ExportedAction.from_message(message):
            result = await episode.execute_action(action)
            actions.append(action)
            conversation += result.messages
            if episode.done:
                break
    return tuple(actions) if await episode.compute_reward() >= 1 else ()


def _check_export(export: Export, kind: ExportFormat) -> None:
    """Refuse an environment that a format cannot represent.

    Raises:
        RecipeError: It has texts as actions, or content other than text.
    """
    first = export.tasks[0]
    if kind == "verifiers" and not first.tools:
        raise RecipeError(f"{export.environment}: a taskset of verifiers needs tools; set actions=call")
    if any(message.text == "" for message in first.opening):
        raise RecipeError(f"{export.environment}: its first observation has no text, which {kind} needs")


def _write_openenv(folder: Path, name: str, export: Export, played: Sequence[_PlayedTask], image: str) -> None:
    """Write an OpenEnv server."""
    interface = (
        "Actions are calls of tools (`MCPToolClient`); the tool `reply` sends a message without a call."
        if export.tasks[0].tools
        else 'Actions are texts: `{"message": …}`.'
    )
    _render_template("openenv", folder, name=name, export=export, image=image, interface=interface)
    (folder / EXPORT_FILE).write_text(export.to_json(), encoding="utf-8")


def _write_verifiers(folder: Path, name: str, export: Export, played: Sequence[_PlayedTask], image: str) -> None:
    """Write a package with a taskset of verifiers."""
    _render_template("verifiers", folder, name=name, export=export)
    (folder / _package_name(name) / EXPORT_FILE).write_text(export.to_json(), encoding="utf-8")


def _write_harbor(folder: Path, name: str, export: Export, played: Sequence[_PlayedTask], image: str) -> None:
    """Write one Harbor folder per task."""
    for number, one in enumerate(played):
        place = folder / (re.sub(r"[^A-Za-z0-9._-]+", "-", one.exported.task.id).strip("-.") or "task")
        if place.exists():  # the ids differ only in characters that were replaced
            place = place.with_name(f"{place.name}-{number}")
        single = Export(export.environment, export.options, (one.exported,), export.pays)
        tools = one.exported.tools
        commands = [f"- `act {tool.name} '{_example(tool)}'`: {tool.description}" for tool in tools]
        commands.append("- `act --message TEXT`: send a message without a call, such as the answer.")
        prompt = show_messages(one.exported.opening)
        _render_template(
            "harbor", place, name=name, export=single, image=image, prompt=prompt, commands="\n".join(commands)
        )
        for part in ("environment", "tests"):
            (place / part / EXPORT_FILE).write_text(single.to_json(), encoding="utf-8")
        if one.actions:
            (place / "solution").mkdir()
            lines = ["#!/bin/sh", *map(_format_command, one.actions)]
            (place / "solution" / "solve.sh").write_text("\n".join(lines) + "\n", encoding="utf-8")
        for script in ("tests/test.sh", "solution/solve.sh", "environment/act", "environment/start"):
            if (place / script).is_file():
                (place / script).chmod(0o755)


def _example(tool: ToolSpec) -> str:
    """Return the arguments of a tool by type, as an example of a call."""
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    return json.dumps({name: f"<{schema.get('type', 'any')}>" for name, schema in properties.items()})


def _format_command(action: ExportedAction) -> str:
    """Return an action as a command of the shell."""
    words = ["act", action.tool, action.arguments] if action.tool else ["act", "--message", action.text]
    return shlex.join(words)


def _package_name(name: str) -> str:
    """Return the name of the package in a folder."""
    return re.sub(r"\W", "_", name).lower()


def _render_template(kind: str, folder: Path, *, name: str, export: Export, **more: str) -> None:
    """Write the files of a template, with `$name` and further words replaced; `PACKAGE` in a path is the package."""
    package = _package_name(name)
    words = {"name": package, "environment": export.environment, "count": str(len(export.tasks)), **more}

    def write(source: Traversable, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        for entry in source.iterdir():
            if entry.name == "__pycache__":
                continue
            target = place / entry.name.replace("PACKAGE", package)
            if entry.is_dir():
                write(entry, target)
            else:
                target.write_text(Template(entry.read_text(encoding="utf-8")).safe_substitute(words), encoding="utf-8")

    write(_TEMPLATES / kind, folder)
