"""`GameEnvironment`: runs a text game as an environment; each action of the agent is one command.

Note:
    A command after the end of a game changes nothing. Such a command is an error of the caller, not of the agent, and
    raises an `EpisodeError`.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, get_type_hints

from whetstone.capabilities import implements_protocol
from whetstone.chat import Message, tool_result, user
from whetstone.environments.dependencies import check_requirements
from whetstone.environments.hosting import Host, create_host
from whetstone.environments.protocol import (
    AcceptsMultiline,
    FewCommands,
    Game,
    GameObservation,
    HasAdmissibleActions,
    HasRequirements,
    Instructs,
    Isolated,
    Isolation,
    Named,
    Observation,
    SelfChecking,
    Snapshots,
    StepResult,
)
from whetstone.environments.text_actions import (
    TOOL,
    UNREADABLE_ERRORS,
    Actions,
    command_result,
    command_tool,
    describe_parse_failure,
    parse_command,
)
from whetstone.errors import EpisodeError, RecipeError
from whetstone.plugins import check_interface, get_component_options, unwrap_partial
from whetstone.tools.protocol import check_verdict, is_replayable
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.trajectory import CallRecord, Task


class _Played(Protocol):
    """Methods that distinguish a game from an environment.

    The other methods are checked when the game is used.
    """

    begin: Any
    act: Any


class GameEnvironment:
    """Environment that plays one text game per episode.

    Recipes create it by the name of a game; `as_environment` wraps a user-defined game.

    Ends: as the game does.

    Args:
        game: Factory of the game; called once per episode.
        actions: `call`: a command is given by the tool `act`. `text`: the command is the text between the last
            `<action>` and `</action>`, or else the last line of the message.
        instruction: Text before the first observation; null: the game's own instruction; empty: none.
        isolation: `object` (in the episode's thread), `thread` or `process`; null: as the game declares.

    Raises:
        RecipeError: If a requirement of the game is not installed.
    """

    def __init__(
        self,
        game: Callable[[], Game],
        *,
        actions: Actions = "call",
        instruction: str | None = None,
        isolation: Isolation | None = None,
    ) -> None:
        self.made = game
        kind: Any = unwrap_partial(game)
        check_requirements(game_name(kind), kind.needs if implements_protocol(kind, HasRequirements) else ())
        self.actions = actions
        written = kind.instruction if implements_protocol(kind, Instructs) else ""
        self.instruction = written if instruction is None else instruction
        declared: Isolation = kind.isolation if implements_protocol(kind, Isolated) else "thread"
        self.isolation: Isolation = isolation or declared
        if "whole" in dir(kind):
            raise RecipeError(
                f"{game_name(kind)}: the attribute `whole` was renamed to `multiline`; rename it in your class"
            )
        self._is_multiline = implements_protocol(kind, AcceptsMultiline) and kind.multiline
        self.replayable = is_replayable(kind)
        self.keeps = implements_protocol(kind, Snapshots)
        self.specs = (command_tool(game_commands(kind)),) if actions == "call" else ()
        self.raised: list[str] = []
        """Descriptions of the commands on which the game raised an exception, with the exception."""
        self._host: Host | None = None
        self._state: Literal["new", "running", "over", "closed"] = "new"

    def check(self) -> None:
        """Check that a game can be created and that it passes its own check.

        Raises:
            RecipeError: If the game refuses one of its options, or cannot be played.
        """
        game: Any = self.made()
        check_interface(game, Game, "game", game_name(unwrap_partial(self.made)))
        try:
            if implements_protocol(game, SelfChecking):
                game.check()
        finally:
            game.close()

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Close the previous game, start a game of the task and return its first text."""
        await self._close_host()
        self._host, self._state, self.raised = create_host(self.made, self.isolation), "new", []
        first = self._check_observation("begin", await self._host.call_method("begin", task, seed))
        self._state = "running"
        text = f"{self.instruction}\n\n{sanitize_text(first.text)}" if self.instruction else sanitize_text(first.text)
        return Observation((user(text),), self.specs, author=first.author)

    async def step(self, action: Message) -> StepResult:
        """Pass the command of an action to the game and return the game's text.

        An action without a valid command is answered with an error message; the game does not receive it.

        Raises:
            EpisodeError: If no game is in progress.
        """
        if self._host is None or self._state != "running":
            when = {"new": "before the first reset", "over": "after the end of the episode"}.get(
                self._state, "on a closed game"
            )
            raise EpisodeError(f"step was called {when}; call reset first")
        command = parse_command(action, self.actions, multiline=self._is_multiline)
        if command is None:
            return self._refuse_action(action)
        began = time.perf_counter()
        result = await self._execute(command)
        if result.terminated or result.truncated:
            self._state = "over"
        answer, calls = command_result(
            action, result.text, understood=result.understood, seconds=time.perf_counter() - began
        )
        return StepResult(
            Observation(answer, author=result.author),
            reward=result.reward,
            terminated=result.terminated,
            truncated=result.truncated and not result.terminated,
            calls=calls,
        )

    async def _execute(self, command: str) -> GameObservation:
        """Execute a command in the game and return its observation.

        If the game raises a `ValueError`, `OverflowError` or `RecursionError`, the observation is that of an invalid
        command.
        """
        assert self._host is not None
        try:
            result = await self._host.call_method("act", command)
        except UNREADABLE_ERRORS as error:
            self.raised.append(f"{command[:40]!r} raised {type(error).__name__}: {str(error)[:100]}")
            return GameObservation("The game cannot read that; say it otherwise.", understood=False)
        return self._check_observation("act", result)

    def _check_observation(self, method: str, result: Any) -> GameObservation:
        if isinstance(result, GameObservation):
            return result
        name = game_name(unwrap_partial(self.made))
        raise TypeError(
            f"{name}.{method}() returned {repr(result)[:60]}, not a GameObservation; return GameObservation(text, …)"
        )

    async def verdict(self) -> Mapping[str, Any]:
        """Return the verdict of the game; empty before the first reset and after `close`."""
        if self._host is None or self._state in ("new", "closed"):
            return {}
        verdict: Mapping[str, Any] = await self._host.call_method("verdict")
        return check_verdict(verdict)

    async def admissible(self) -> tuple[str, ...]:
        """Return the admissible commands of the current state.

        If the game does not list them, its constant commands; empty if it has none.
        """
        kind = unwrap_partial(self.made)
        if not implements_protocol(kind, HasAdmissibleActions):
            return game_commands(kind)
        assert self._host is not None
        return tuple(await self._host.call_method("admissible"))

    async def snapshot(self) -> Any:
        """Return the complete state of the game; None without support of snapshots."""
        return (
            (self._state, await self._host.call_method("snapshot")) if self.keeps and self._host is not None else None
        )

    async def restore(self, snapshot: Any) -> None:
        """Restore a state that `snapshot` returned, after a reset with the same task."""
        assert self._host is not None
        self._state, state = snapshot
        await self._host.call_method("restore", state)

    async def close(self) -> None:
        """Close the game and release its thread or process."""
        await self._close_host()
        self._state = "closed"

    async def _close_host(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            await host.close()

    def _refuse_action(self, action: Message) -> StepResult:
        """Return the error message for an action without a valid command.

        The game does not receive it. Covers malformed calls, several calls in one turn, other tools than `act`, and
        commands that are too long.
        """
        if action.malformed:
            answer = tuple(tool_result(f"error: {sanitize_text(what)}") for what in action.malformed)
            calls = tuple(CallRecord("", "malformed_call", 0.0) for _ in action.malformed)
        elif len(action.tool_calls) > 1:
            answer = (tool_result(f"error: {len(action.tool_calls)} calls in one turn, 1 allowed; none was made"),)
            calls = tuple(CallRecord(sanitize_text(call.name), "too_many_calls", 0.0) for call in action.tool_calls)
        else:
            why = describe_parse_failure(action, self.actions, multiline=self._is_multiline)
            if not action.tool_calls:
                return StepResult(Observation((user(f"{why[0].upper()}{why[1:]}."),)))
            (call,) = action.tool_calls
            answer = (tool_result(f"error: {why}"),)
            calls = (
                CallRecord(sanitize_text(call.name), "invalid_arguments" if call.name == TOOL else "unknown_tool", 0.0),
            )
        return StepResult(Observation(answer), calls=calls)


def game_name(kind: Any) -> str:
    """Return the name of a game in recipes.

    This is its attribute `name`, or else the name of its class.
    """
    return str(kind.name if implements_protocol(kind, Named) else getattr(kind, "__name__", type(kind).__name__))


def game_commands(kind: object) -> tuple[str, ...]:
    """Return all commands of a game that declares a constant set of commands.

    Empty for other games.
    """
    return tuple(kind.commands) if implements_protocol(kind, FewCommands) else ()


def is_game(kind: Any) -> bool:
    """Return whether a component is the class of a game, not of an environment."""
    return inspect.isclass(kind) and implements_protocol(kind, _Played)


def as_environment(game: Any) -> Callable[..., GameEnvironment]:
    """Return an environment factory for the class of a game.

    The factory accepts the options of the game and those of `GameEnvironment`; its signature lists both, for recipes
    and the generated reference.

    Args:
        game: Class that implements `Game`.
    """
    own = get_component_options(game)
    around = {name: each for name, each in get_component_options(GameEnvironment).items() if name != "game"}

    def environment(**options: Any) -> GameEnvironment:
        of_game = {name: value for name, value in options.items() if name in own}
        rest = {name: value for name, value in options.items() if name not in own}
        make: Callable[[], Game] = functools.partial(game, **of_game)
        return GameEnvironment(make, **rest)

    hints = get_type_hints(GameEnvironment.__init__)
    if own:
        hints |= get_type_hints(game.__init__)
    environment.__signature__ = inspect.Signature([*own.values(), *around.values()])  # type: ignore[attr-defined]
    environment.__annotations__ = {name: hints[name] for name in (*own, *around)}
    environment.__name__, environment.__doc__ = game_name(game), game.__doc__
    return environment
