"""Tasks of a game, and its expert: the game is brought to where the conversation is, and asked what to do there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.environments.commands import TOOL, Actions, command_of
from whetstone.tasks.generated import Generated
from whetstone.trajectory import Task


def said_as_command(command: str, tools: Sequence[ToolSpec]) -> Message:
    """A command, as a call where there is a tool for it, else as text."""
    if any(tool.name == TOOL for tool in tools):
        return assistant("", ToolCall(TOOL, json.dumps({"command": command})))
    return assistant(command)


class Solver:
    """Says what an expert would do in a game that plays the same way each time.

    The last few games are kept where they are, so each answer costs one command and not the whole episode again.
    """

    def __init__(self, game: Callable[[], Any], *, kept: int = 256) -> None:
        self.game, self.kept = game, kept
        self._games: dict[tuple[str, tuple[str, ...]], Any] = {}

    def next_command(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str:
        """What an expert says behind this conversation."""
        how: Actions = "call" if any(tool.name == TOOL for tool in tools) else "text"
        actions = (command_of(message, how) for message in conversation if message.role == "assistant")
        commands = tuple(command for command in actions if command is not None)  # the game heard of no other
        game = self._games.pop((task.id, commands[:-1]), None) if commands else None
        if game is not None:
            game.act(commands[-1])
        else:
            game = self.game()
            game.begin(task, 0)
            for command in commands:
                game.act(command)
        if len(self._games) >= self.kept:
            self._games.pop(next(iter(self._games))).close()
        self._games[task.id, commands] = game
        return str(game.solve())


class GameTasks(Generated):
    """Tasks of a game that knows how it is solved (`solve`); a subclass makes them.

    Args:
        seed: As of `Generated`.
        levels: As of `Generated`.
    """

    game: ClassVar[type[Any]]

    def __init__(self, *, seed: int = 0, levels: list[int] | None = None) -> None:
        super().__init__(seed=seed, levels=levels)
        self._solver = Solver(self.game)

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The game's own solution, from where the conversation is."""
        return said_as_command(self._solver.next_command(task, conversation, tools), tools)
