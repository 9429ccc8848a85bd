"""Tasks of a game and their expert: replays the conversation in the game, whose solver returns the next command."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.environments.text_actions import TOOL, Actions, parse_command
from whetstone.tasks.generated import Generated
from whetstone.trajectory import Task


def command_to_message(command: str, tools: Sequence[ToolSpec]) -> Message:
    """Return a command as a message of the assistant.

    The message calls the tool `act` if it is available; otherwise its text is the command.
    """
    if any(tool.name == TOOL for tool in tools):
        return assistant("", ToolCall(TOOL, json.dumps({"command": command})))
    return assistant(command)


class Solver:
    """Expert that returns the commands of a game's solver.

    For deterministic games only. The most recent games keep their state, so that each answer costs one command and no
    replay of the episode.

    Args:
        game: Factory of the game, which must have `solve`.
        max_games: Maximum number of games that are kept open.
    """

    def __init__(self, game: Callable[[], Any], *, max_games: int = 256) -> None:
        self.game, self.kept = game, max_games
        self._games: dict[tuple[str, tuple[str, ...]], Any] = {}

    def next_command(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str:
        """Return the solver's next command after a conversation.

        A game that is not kept open is started with the task and replays the commands of the conversation.

        Args:
            task: Task of the episode.
            conversation: Messages so far; the messages of the assistant contain the commands.
            tools: Tools of the episode; commands are calls if they include `act`, else text.
        """
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
    """Base class of task sources of a game that has a solver.

    A subclass sets `game` and generates the tasks in `make`.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
    """

    game: ClassVar[type[Any]]
    """Class of the game whose solver demonstrates the tasks."""

    def __init__(self, *, seed: int = 0, levels: list[int] | None = None) -> None:
        super().__init__(seed=seed, levels=levels)
        self._solver = Solver(self.game)

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the next command of the game's solver after the conversation."""
        return command_to_message(self._solver.next_command(task, conversation, tools), tools)
