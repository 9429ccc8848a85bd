"""Games with several seats, each seat an environment of its own: what the others say is what comes back.

An episode is one seat's. Two policies at one table are two episodes that wait for each other, so each role has its own
trajectory, its own tokens and its own reward, and nothing else has to know of it. Seats nobody takes are played by the
game's script.

The strategy `self_play` requests a seat for each episode (`SeatRequest`); all episodes of a game name the same table.
Without a request, the episode has a table to itself and the first seat.

Easy to get wrong: who waits for a player that has left waits for ever. A seat that is closed before the end ends the
game for the others, who are told so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from whetstone.chat import Message, user
from whetstone.contracts import fulfils
from whetstone.environments.commands import ODD, Actions, answered, command_of, tool_of, why_none
from whetstone.environments.protocol import Observation, SeatRequest, Seats, StepResult
from whetstone.errors import EpisodeError, TaskError, did_you_mean
from whetstone.trajectory import Author, Task


class TableGame(Protocol):
    """A game with seats: plain and synchronous. `roles` and `InstructsRoles` are the class's."""

    roles: tuple[str, ...]

    def begin(self, task: Task, seed: int) -> None:
        """Begin."""
        ...

    def to_move(self) -> str:
        """Whose turn it is; empty when it is over."""
        ...

    def seen(self, role: str) -> str:
        """What a role is shown when it is to move, or at the end: what it has not read yet."""
        ...

    def act(self, role: str, command: str) -> bool:
        """Carry out a command of who is to move; whether it was one."""
        ...

    def script(self, role: str) -> str:
        """What the script says in this seat."""
        ...

    def verdict(self, role: str) -> Mapping[str, Any]:
        """How it went for a role: `success`, `score`, …"""
        ...


@runtime_checkable
class InstructsRoles(Protocol):
    """A game that says how each role is played."""

    instructions: Mapping[str, str]
    """By role; stands in front of what it is shown first."""


@dataclass(slots=True)
class _Table:
    """A game and who sits at it."""

    game: TableGame
    scripted: frozenset[str]
    """Roles nobody takes."""
    left: str = ""
    """Who went before the end."""
    taken: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    def let_script(self) -> None:
        """Scripted seats move until somebody else is to."""
        while (role := self.game.to_move()) in self.scripted:
            self.game.act(role, self.game.script(role))


_tables: dict[str, _Table] = {}


class Seat:
    """One seat at a table. Ends: terminated with the game; truncated where another player has left.

    Args:
        game: Makes the game.
        actions: As of a game with one seat: commands as a call of `act`, or as text.
    """

    replayable = False

    def __init__(self, game: Callable[[], TableGame], *, actions: Actions = "call") -> None:
        self.made, self.actions = game, actions
        self.specs = (tool_of(()),) if actions == "call" else ()
        self.roles: tuple[str, ...] = tuple(game.roles) if fulfils(game, Seats) else ()
        self.role = ""
        self.raised: list[str] = []
        """Commands on which the game raised instead of answering, and what."""
        self._table: _Table | None = None
        self._requested: SeatRequest | None = None
        self._name = ""
        self._over = True

    def take_seat(self, seat: SeatRequest) -> None:
        """Set the seat of the next episode; see `TakesSeat`."""
        self._requested = seat

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Sit down, and wait for one's turn.

        Raises:
            TaskError: There is no such seat, or somebody sits there.
        """
        await self.close()
        requested, self._requested = self._requested, None
        self._name = requested.table if requested is not None else ""
        table = _tables.get(self._name) if self._name else None
        if table is None:
            table = self._laid(task, requested.seed if requested is not None else seed)
        roles = table.game.roles
        self.role = requested.role if requested is not None else roles[0]
        if self.role not in roles:
            async with table.moved:  # who waits for this one waits in vain
                table.left = self.role
                table.moved.notify_all()
            raise TaskError(f"task {task.id}: there is no seat {self.role}{did_you_mean(self.role, roles)}")
        if self.role in table.taken:
            raise TaskError(f'task {task.id}: seat "{self.role}" is already taken')
        table.taken.add(self.role)
        self._table, self._over = table, False
        table.let_script()
        await self._my_turn()
        written = table.game.instructions if fulfils(table.game, InstructsRoles) else {}
        instruction = written.get(self.role, "")
        seen = table.game.seen(self.role)
        return Observation((user(f"{instruction}\n{seen}".strip()),), self.specs, author=Author.OTHER_AGENT)

    async def step(self, action: Message) -> StepResult:
        """One command; then the others, until it is this seat's turn again.

        Raises:
            EpisodeError: There is no game under way.
        """
        table = self._table
        if table is None or self._over:
            raise EpisodeError("a step outside an episode; reset begins another")
        if table.left or table.game.to_move() != self.role:  # somebody went while this one was thinking
            return self._answered(table, action, understood=True)
        command = command_of(action, self.actions)
        if command is None:
            several = bool(action.malformed) or len(action.tool_calls) > 1
            why = "give one command" if several else why_none(action, self.actions)
            return StepResult(Observation((user(f"{why[0].upper()}{why[1:]}."),)))
        async with table.moved:
            try:
                understood = table.game.act(self.role, command)
            except ODD as error:
                self.raised.append(f"{command[:40]!r} raised {type(error).__name__}: {str(error)[:100]}")
                return StepResult(Observation((user("The game cannot read that; say it otherwise."),)))
            table.let_script()
            table.moved.notify_all()
        await self._my_turn()
        return self._answered(table, action, understood=understood)

    async def verdict(self) -> Mapping[str, Any]:
        """How it went for this seat."""
        return self._table.game.verdict(self.role) if self._table is not None else {}

    async def close(self) -> None:
        """Stand up; who still plays is told."""
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

    def _laid(self, task: Task, seed: int) -> _Table:
        """A new table; on one with a name every seat is somebody's, else all but one are scripted."""
        game = self.made()
        game.begin(task, seed)
        table = _Table(game, frozenset(() if self._name else game.roles[1:]))
        if self._name:
            _tables[self._name] = table
        return table

    async def _my_turn(self) -> None:
        table = self._table
        assert table is not None
        async with table.moved:
            await table.moved.wait_for(lambda: table.left or table.game.to_move() in ("", self.role))

    def _answered(self, table: _Table, action: Message, *, understood: bool) -> StepResult:
        over = not table.game.to_move()
        self._over = over or bool(table.left)
        text = table.game.seen(self.role)
        if table.left and not over:
            text = f"{text}\nThe {table.left} has left.".strip()
        answer, records = answered(action, text, understood=understood)
        observation = Observation(answer, author=Author.OTHER_AGENT)
        return StepResult(observation, terminated=over, truncated=bool(table.left) and not over, calls=records)
