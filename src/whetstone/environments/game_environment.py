"""An environment around a game: each action of the agent is one command.

Easy to get wrong: a command behind the end of a game changes nothing any more, and is a mistake of whoever plays the
episode, not of the agent's. It is refused by an error of its own kind.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, get_type_hints

from whetstone.chat import Message, tool_result, user
from whetstone.contracts import fulfils
from whetstone.environments.commands import ODD, TOOL, Actions, answered, command_of, tool_of, why_none
from whetstone.environments.dependencies import check_needs
from whetstone.environments.hosting import Host, host_of
from whetstone.environments.protocol import (
    Admits,
    Checks,
    FewCommands,
    Game,
    GameObservation,
    Instructs,
    Isolated,
    Isolation,
    Named,
    Needs,
    Observation,
    ReadsWhole,
    Snapshots,
    StepResult,
)
from whetstone.errors import EpisodeError
from whetstone.plugins import options_of, unbound
from whetstone.tools.plain_text import plain
from whetstone.tools.protocol import replayable
from whetstone.trajectory import CallRecord, Task


class _Played(Protocol):
    """What tells a game from an environment; that it has the rest, too, is seen when it is played."""

    begin: Any
    act: Any


class GameEnvironment:
    """One game an episode.

    Ends: as the game does.

    Args:
        game: Makes the game.
        actions: `call`: a command is given by the tool `act`. `text`: it is what the agent says: what stands between
            the last `<action>` and `</action>`, else the last line.
        instruction: What stands in front of the first text; null: what the game says; empty: nothing.
        isolation: Where the game runs: `object` (here), `thread` or `process`; null: as the game declares.

    Raises:
        RecipeError: Something the game needs is not installed.
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
        kind: Any = unbound(game)
        check_needs(name_of(kind), kind.needs if fulfils(kind, Needs) else ())
        self.actions = actions
        written = kind.instruction if fulfils(kind, Instructs) else ""
        self.instruction = written if instruction is None else instruction
        declared: Isolation = kind.isolation if fulfils(kind, Isolated) else "thread"
        self.isolation: Isolation = isolation or declared
        self._whole = fulfils(kind, ReadsWhole) and kind.whole
        self.replayable = replayable(kind)
        self.keeps = fulfils(kind, Snapshots)
        self.specs = (tool_of(commands_of(kind)),) if actions == "call" else ()
        self.raised: list[str] = []
        """Commands on which the game raised instead of answering, and what."""
        self._host: Host | None = None
        self._state: Literal["new", "running", "over", "closed"] = "new"

    def check(self) -> None:
        """See that a game can be made, and that it can be played where it knows how to tell.

        Raises:
            RecipeError: It refuses one of its options, or cannot be played.
        """
        game: Any = self.made()
        try:
            if fulfils(game, Checks):
                game.check()
        finally:
            game.close()

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Begin a game of the task."""
        await self._let_go()
        self._host, self._state, self.raised = host_of(self.made, self.isolation), "new", []
        shown = await self._host.ask("begin", task, seed)
        self._state = "running"
        text = f"{self.instruction}\n\n{plain(shown.text)}" if self.instruction else plain(shown.text)
        return Observation((user(text),), self.specs, author=shown.author)

    async def step(self, action: Message) -> StepResult:
        """Give the game the command of an action.

        Raises:
            EpisodeError: No game is under way.
        """
        if self._host is None or self._state != "running":
            said = {"new": "before the first reset", "over": "behind the end of the episode"}.get(self._state, "closed")
            raise EpisodeError(f"a step {said}; reset begins another")
        command = command_of(action, self.actions, whole=self._whole)
        if command is None:
            return self._not_a_command(action)
        began = time.perf_counter()
        shown = await self._carried_out(command)
        if shown.terminated or shown.truncated:
            self._state = "over"
        answer, calls = answered(action, shown.text, understood=shown.understood, seconds=time.perf_counter() - began)
        return StepResult(
            Observation(answer, author=shown.author),
            reward=shown.reward,
            terminated=shown.terminated,
            truncated=shown.truncated and not shown.terminated,
            calls=calls,
        )

    async def _carried_out(self, command: str) -> GameObservation:
        """What the game shows; that it could not read the command, where it raises what such a game raises."""
        assert self._host is not None
        try:
            shown: GameObservation = await self._host.ask("act", command)
        except ODD as error:
            self.raised.append(f"{command[:40]!r} raised {type(error).__name__}: {str(error)[:100]}")
            return GameObservation("The game cannot read that; say it otherwise.", understood=False)
        return shown

    async def verdict(self) -> Mapping[str, Any]:
        """What the game says of how it went."""
        if self._host is None or self._state in ("new", "closed"):
            return {}
        said: Mapping[str, Any] = await self._host.ask("verdict")
        return said

    async def admissible(self) -> tuple[str, ...]:
        """The commands that do something here; none where the game does not say."""
        kind = unbound(self.made)
        if not fulfils(kind, Admits):
            return commands_of(kind)
        assert self._host is not None
        return tuple(await self._host.ask("admissible"))

    async def snapshot(self) -> Any:
        """All there is to know of where the game is; None where it cannot say."""
        return (self._state, await self._host.ask("snapshot")) if self.keeps and self._host is not None else None

    async def restore(self, snapshot: Any) -> None:
        """Go back to where it was; the same task has begun."""
        assert self._host is not None
        self._state, kept = snapshot
        await self._host.ask("restore", kept)

    async def close(self) -> None:
        """Close the game, on every path."""
        await self._let_go()
        self._state = "closed"

    async def _let_go(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            await host.close()

    def _not_a_command(self, action: Message) -> StepResult:
        """Nothing of what was said is carried out."""
        if action.malformed:
            answer = tuple(tool_result(f"error: {plain(what)}") for what in action.malformed)
            calls = tuple(CallRecord("", "malformed_call", 0.0) for _ in action.malformed)
        elif len(action.tool_calls) > 1:
            answer = (tool_result(f"error: {len(action.tool_calls)} calls in one turn, 1 allowed; none was made"),)
            calls = tuple(CallRecord(plain(call.name), "too_many_calls", 0.0) for call in action.tool_calls)
        else:
            why = why_none(action, self.actions, whole=self._whole)
            if not action.tool_calls:
                return StepResult(Observation((user(f"{why[0].upper()}{why[1:]}."),)))
            (call,) = action.tool_calls
            answer = (tool_result(f"error: {why}"),)
            calls = (CallRecord(plain(call.name), "invalid_arguments" if call.name == TOOL else "unknown_tool", 0.0),)
        return StepResult(Observation(answer), calls=calls)


def name_of(kind: Any) -> str:
    """What a game is called in a recipe: its `name`, else that of its class."""
    return str(kind.name if fulfils(kind, Named) else getattr(kind, "__name__", type(kind).__name__))


def commands_of(kind: object) -> tuple[str, ...]:
    """All commands of a game that has always the same few; none of another."""
    return tuple(kind.commands) if fulfils(kind, FewCommands) else ()


def is_game(kind: Any) -> bool:
    """Whether something a recipe names is a game, to be put into an environment."""
    return inspect.isclass(kind) and fulfils(kind, _Played)


def played(game: Any) -> Callable[..., GameEnvironment]:
    """What makes environments of a game: its options and the environment's own, in one signature."""
    own = options_of(game)
    around = {name: each for name, each in options_of(GameEnvironment).items() if name != "game"}

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
    environment.__name__, environment.__doc__ = name_of(game), game.__doc__
    return environment
