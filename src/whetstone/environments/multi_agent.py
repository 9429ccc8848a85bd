"""Games with several seats: each seat is an environment, and the messages of the others are its observations.

An episode is that of one seat. Two policies at one table are two episodes that wait for each other, so each role has
its own trajectory, tokens and reward, and other components need no support for it. The game's script plays seats that
no episode takes.

The strategy `self_play` requests a seat for each episode (`SeatRequest`); all episodes of a game name the same table. A
request without a table, and no request, give the episode a table to itself; without a request it has the first seat.

Note:
    A player that waits for another that has left would wait forever. A seat that is closed before the end therefore
    ends the game for the others, and their last observation mentions it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from whetstone.capabilities import implements_protocol
from whetstone.chat import Message, user
from whetstone.environments.protocol import Observation, SeatRequest, Seats, StepResult
from whetstone.environments.text_actions import (
    UNREADABLE_ERRORS,
    Actions,
    command_result,
    command_tool,
    describe_parse_failure,
    parse_command,
)
from whetstone.errors import EpisodeError, TaskError, did_you_mean
from whetstone.tools.protocol import HasClose
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import Author, Task


class TableGame(Protocol):
    """Interface of a game with several seats: plain and synchronous.

    `Seat` creates one game per table. `roles` and the attributes of `InstructsRoles` are read from the class.
    """

    roles: tuple[str, ...]
    """Names of the seats, in the order of the game."""

    def begin(self, task: Task, seed: int) -> None:
        """Start a game of the task; the seed determines all random events."""
        ...

    def to_move(self) -> str:
        """Return the role whose turn it is; empty if the game is over."""
        ...

    def seen(self, role: str) -> str:
        """Return the text that a role has not read yet.

        Called when it is the role's turn and at the end of the game.
        """
        ...

    def act(self, role: str, command: str) -> bool:
        """Execute a command of the role whose turn it is; return whether it was valid."""
        ...

    def script(self, role: str) -> str:
        """Return the script's command for a role whose turn it is.

        Called for seats that no episode plays.
        """
        ...

    def verdict(self, role: str) -> Mapping[str, Any]:
        """Return the result for a role: `success`, `score` (0 to 1) and further counts."""
        ...


@runtime_checkable
class InstructsRoles(Protocol):
    """Optional protocol of a game with seats that explains how each role is played."""

    instructions: Mapping[str, str]
    """Instruction by role; shown before the first observation of the role."""


@runtime_checkable
class RewardsRoles(Protocol):
    """Optional protocol of a game with seats that gives rewards during the game."""

    def collect_reward(self, role: str) -> float:
        """Return the sum of the rewards of a role since the last call.

        Called after each action of the role, when it is its turn again or the game is over.
        """
        ...


@runtime_checkable
class ListsMoves(Protocol):
    """Optional protocol of a game with seats that lists the commands of a role."""

    def list_moves(self, role: str) -> Sequence[str]:
        """Return the commands that are admissible for a role now; empty if the game lists none."""
        ...


@dataclass(slots=True)
class _Table:
    """Running game and its players, shared by the `Seat` instances of its episodes."""

    game: TableGame
    """The game."""
    scripted: frozenset[str]
    """Roles that the script plays."""
    left: str = ""
    """Role that left before the end of the game; empty if no role left."""
    taken: set[str] = field(default_factory=set)
    """Roles that episodes play."""
    closed: set[str] = field(default_factory=set)
    """Roles whose episodes are closed."""
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)
    """Condition that is notified after each move and when a role leaves."""

    def let_script(self) -> None:
        """Execute the moves of scripted seats until another seat is to move."""
        while (role := self.game.to_move()) in self.scripted:
            self.game.act(role, self.game.script(role))


_tables: dict[str, _Table] = {}


class Seat:
    """Environment of one seat in a game with several players.

    A user-defined `TableGame` becomes an environment by `Seat(MyGame)`.

    Ends: terminated with the game; truncated if another player leaves.

    Args:
        game: Factory of the game.
        actions: Same as for a game with one seat: commands as a call of `act`, or as text.
    """

    replayable = False

    def __init__(self, game: Callable[[], TableGame], *, actions: Actions = "call") -> None:
        self.made, self.actions = game, actions
        self.specs = (command_tool(()),) if actions == "call" else ()
        self.roles: tuple[str, ...] = tuple(game.roles) if implements_protocol(game, Seats) else ()
        self.role = ""
        self.raised: list[str] = []
        """Descriptions of the commands on which the game raised an exception, with the exception."""
        self._table: _Table | None = None
        self._requested: SeatRequest | None = None
        self._name = ""
        self._over = True

    def take_seat(self, seat: SeatRequest) -> None:
        """Set the seat of the next episode; see `TakesSeat`."""
        self._requested = seat

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Take the seat, wait for its turn and return the first observation.

        Raises:
            TaskError: If the seat does not exist or is taken.
        """
        await self.close()
        requested, self._requested = self._requested, None
        self._name = requested.table if requested is not None else ""
        table = _tables.get(self._name) if self._name else None
        if table is None:
            table = self._create_table(task, requested.seed if requested is not None else seed, requested)
        roles = table.game.roles
        self.role = requested.role if requested is not None else roles[0]
        if self.role not in roles:
            async with table.moved:  # episodes that wait for this seat would wait forever
                table.left = self.role
                table.moved.notify_all()
            raise TaskError(f"task {task.id}: no seat named {self.role}{did_you_mean(self.role, roles)}")
        if self.role in table.taken:
            raise TaskError(f'task {task.id}: seat "{self.role}" is already taken')
        table.taken.add(self.role)
        self._table, self._over = table, False
        table.let_script()
        await self._wait_for_turn()
        written = table.game.instructions if implements_protocol(table.game, InstructsRoles) else {}
        instruction = written.get(self.role, "")
        seen = table.game.seen(self.role)
        return Observation((user(f"{instruction}\n{seen}".strip()),), self.specs, author=Author.OTHER_AGENT)

    async def step(self, action: Message) -> StepResult:
        """Execute one command, then wait until it is this seat's turn again.

        A command that the game cannot read gets an error message and does not end the turn.

        Raises:
            EpisodeError: If no game is in progress.
        """
        table = self._table
        if table is None or self._over:
            raise EpisodeError("step was called outside an episode; call reset first")
        if table.left or table.game.to_move() != self.role:  # a player left while the policy sampled
            return self._observe_table(table, action, understood=True)
        command = parse_command(action, self.actions)
        if command is None:
            several = bool(action.malformed) or len(action.tool_calls) > 1
            why = "give one command" if several else describe_parse_failure(action, self.actions)
            return StepResult(Observation((user(f"{why[0].upper()}{why[1:]}."),)))
        async with table.moved:
            try:
                understood = table.game.act(self.role, command)
            except UNREADABLE_ERRORS as error:
                self.raised.append(f"{command[:40]!r} raised {type(error).__name__}: {str(error)[:100]}")
                return StepResult(Observation((user("The game cannot read that; say it otherwise."),)))
            table.let_script()
            table.moved.notify_all()
        await self._wait_for_turn()
        return self._observe_table(table, action, understood=understood)

    def admissible(self) -> tuple[str, ...]:
        """Return the commands that are admissible for this seat; empty if the game lists none."""
        game = self._table.game if self._table is not None else None
        return tuple(game.list_moves(self.role)) if implements_protocol(game, ListsMoves) else ()

    async def verdict(self) -> Mapping[str, Any]:
        """Return the result of the game for this seat.

        Empty before the first reset and after `close`.
        """
        return self._table.game.verdict(self.role) if self._table is not None else {}

    async def close(self) -> None:
        """Leave the table and notify the other players.

        An unfinished game then ends for them.
        """
        table, self._table = self._table, None
        if table is None:
            return
        async with table.moved:
            table.closed.add(self.role)
            if table.game.to_move() and not table.left:
                table.left = self.role
            table.moved.notify_all()
        if table.closed >= table.taken and len(table.taken) == len(table.game.roles) - len(table.scripted):
            _tables.pop(self._name, None)
            if implements_protocol(table.game, HasClose):
                await call_user_function(table.game.close)

    def _create_table(self, task: Task, seed: int, requested: SeatRequest | None) -> _Table:
        """Create a table and start its game.

        At a table with a name, episodes play all seats; at a table without a name, scripts play all others.
        """
        game = self.made()
        game.begin(task, seed)
        own = game.roles[0] if requested is None else requested.role
        table = _Table(game, frozenset(() if self._name else game.roles) - {own})
        if self._name:
            _tables[self._name] = table
        return table

    async def _wait_for_turn(self) -> None:
        """Wait until it is this seat's turn, the game is over, or a player left."""
        table = self._table
        assert table is not None
        async with table.moved:
            await table.moved.wait_for(lambda: table.left or table.game.to_move() in ("", self.role))

    def _observe_table(self, table: _Table, action: Message, *, understood: bool) -> StepResult:
        """Return the text that this seat has not read yet, and the end of the game."""
        over = not table.game.to_move()
        self._over = over or bool(table.left)
        text = table.game.seen(self.role)
        if table.left and not over:
            text = f"{text}\nThe {table.left} has left.".strip()
        answer, records = command_result(action, text, understood=understood)
        observation = Observation(answer, author=Author.OTHER_AGENT)
        reward = table.game.collect_reward(self.role) if implements_protocol(table.game, RewardsRoles) else None
        left = bool(table.left) and not over
        return StepResult(observation, reward=reward, terminated=over, truncated=left, calls=records)
