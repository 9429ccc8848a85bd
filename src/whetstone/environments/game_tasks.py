"""Tasks of a game and their expert: the game replays the conversation, and its solver returns the next command."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.environments.text_actions import TOOL, Actions, parse_command
from whetstone.tasks.generated import Generated
from whetstone.trajectory import Task


def command_to_message(command: str, tools: Sequence[ToolSpec]) -> Message:
    """Return a command as a message: a call if the tool `act` exists, or else text."""
    if any(tool.name == TOOL for tool in tools):
        return assistant("", ToolCall(TOOL, json.dumps({"command": command})))
    return assistant(command)


class Solver:
    """Expert for deterministic games.

    The most recent games keep their state, so that each answer costs one command and no replay of the episode.
    """

    def __init__(self, game: Callable[[], Any], *, max_games: int = 256) -> None:
        self.game, self.kept = game, max_games
        self._games: dict[tuple[str, tuple[str, ...]], Any] = {}

    def next_command(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str:
        """Return the expert's command after a conversation."""
        how: Actions = "call" if any(tool.name == TOOL for tool in tools) else "text"
        actions = (parse_command(message, how) for message in conversation if message.role == "assistant")
        commands = tuple(command for command in actions if command is not None)  # the game received no others
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
    """Tasks of a game that has a solver (`solve`); a subclass generates them.

    Args:
        seed: See `Generated`.
        levels: See `Generated`.
    """

    game: ClassVar[type[Any]]

    def __init__(self, *, seed: int = 0, levels: list[int] | None = None) -> None:
        super().__init__(seed=seed, levels=levels)
        self._solver = Solver(self.game)

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the next command of the game's solution after the conversation."""
        return command_to_message(self._solver.next_command(task, conversation, tools), tools)
