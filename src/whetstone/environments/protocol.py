"""Interfaces of environments, games and simulated users: `reset`, `step`, `close` and the optional protocols."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from whetstone.capabilities import implements_protocol
from whetstone.chat import Message, ToolSpec
from whetstone.tools.protocol import (
    DeclaresProvenance,
    Episode,
    GivesVerdict,
    Replayable,
    Stateless,
    replayable,
    stateless,
)
from whetstone.tools.side_effects import DeclaresEffects
from whetstone.trajectory import Author, CallRecord, EndReason, Task

if TYPE_CHECKING:
    from whetstone.environments.dependencies import Requirement
    from whetstone.tools import Toolset


NEW_CONVERSATION = -1
"""As `Observation.conversation`: the agent reads this observation and nothing before it."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Messages and tools that an agent receives from its environment."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    """Tools that are available from now on; empty after an action if they did not change in the conversation."""
    declared: tuple[tuple[str, str], ...] = ()
    """Facts about the environment that models adapt to, as (name, value); read at reset."""
    author: Author = Author.ENVIRONMENT
    """Author of the messages: `partner` for a simulated user or an opponent."""
    conversation: int = 0
    """Number of the conversation that it extends. A number that was not used before, or `NEW_CONVERSATION`, starts one
    without earlier messages."""
    agent: str = ""
    """Name of the agent that reads it; empty if the episode has one agent, or names none."""

    def __post_init__(self) -> None:
        if self.author not in (Author.ENVIRONMENT, Author.OTHER_AGENT):  # the policy's own text is the sampled tokens
            raise ValueError(f"the author of an observation is environment or partner, got {self.author}")


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of an action: the next observation, the reward and the end of the episode, if any."""

    observation: Observation
    reward: float | None = None
    terminated: bool = False
    """Whether the environment reached a final state."""
    truncated: bool = False
    """Whether the environment cut the episode short."""
    reason: EndReason | None = None
    """End reason that is more specific than `terminated` or `truncated`, such as `tool_stopped`."""
    calls: tuple[CallRecord, ...] = ()
    """Tool calls of the action, in order."""
    executed_action: Message | None = None
    """Action that was executed instead of the policy's, if any. Later turns read it, and the policy's action is still
    trained."""

    @property
    def ended(self) -> EndReason | None:
        """Return the end reason of the episode; None if the episode continues."""
        if self.reason is not None:
            return self.reason
        if self.terminated:
            return EndReason.TERMINATED
        return EndReason.TRUNCATED if self.truncated else None


class Environment(Protocol):
    """Executes the actions of an episode. One instance serves one episode at a time; `close` is always called.

    An episode can be forked at a turn if the environment can return to that state: by a snapshot (`Snapshots`), or by
    the same actions, which is assumed unless the environment declares otherwise (`Replayable`). `OPTIONAL` lists the
    other optional protocols. A wrapper has the optional protocols of the environment that it wraps.
    """

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Start an episode; return the initial messages and the available tools."""
        ...

    async def step(self, action: Message) -> StepResult:
        """Execute one action of the agent."""
        ...

    async def close(self) -> None:
        """Release all resources."""
        ...


# ------------------------------------------------------------ optional protocols of environments


@runtime_checkable
class Snapshots(Protocol):
    """An environment whose state can be saved and restored, so that episodes can be forked."""

    def snapshot(self) -> Any:
        """Return the complete state.

        Plain or async, called after a turn from which another episode can be forked.
        """
        ...

    def restore(self, snapshot: Any) -> Awaitable[None] | None:
        """Restore a state.

        Plain or async, called on an environment that was reset with the same task.
        """
        ...


@runtime_checkable
class OptionalSnapshots(Protocol):
    """An environment that has the methods of `Snapshots` but cannot always use them."""

    keeps: bool
    """Whether `snapshot` and `restore` can be called."""


@runtime_checkable
class HasAdmissibleActions(Protocol):
    """An environment or game that lists the admissible actions; players without a model use them."""

    def admissible(self) -> Awaitable[Sequence[str]] | Sequence[str]:
        """Return the admissible commands of this turn.

        An environment can be async, a game is plain.
        """
        ...


@runtime_checkable
class ShowsTools(Protocol):
    """An environment whose tools are known before an episode starts."""

    specs: Sequence[ToolSpec]
    """Tools; read directly after construction."""


@runtime_checkable
class HoldsTools(Protocol):
    """An environment whose tools are a toolset, which has more information than their specs."""

    toolset: Toolset


@runtime_checkable
class Seats(Protocol):
    """A game or environment with several players, each in a seat."""

    roles: Sequence[str]
    """Names of the seats."""


@dataclass(frozen=True, slots=True)
class SeatRequest:
    """The seat of an episode in a game of several players."""

    role: str
    """Name of the seat."""
    table: str
    """Name of the game, the same in the episodes of all its players; empty: scripts play the other seats."""
    seed: int
    """Seed of the game."""


@runtime_checkable
class TakesSeat(Protocol):
    """An environment of a game of several players, one episode per seat."""

    def take_seat(self, seat: SeatRequest) -> None:
        """Set the seat of the next episode; called before `reset`. Without it, the episode has a game to itself."""
        ...


@runtime_checkable
class HasText(Protocol):
    """An environment that declares whether its observations contain more than its tasks; assumed if it does not."""

    speaks: bool
    """False if it shows only a task and the results of plain functions."""


@runtime_checkable
class HasOptionalVerdict(Protocol):
    """An environment that has a `verdict`, which can be empty."""

    judges: bool
    """False if no component of it can judge the result of an episode."""


@runtime_checkable
class SelfChecking(Protocol):
    """An environment or game that can check before any episode whether it can be played with its options."""

    def check(self) -> None:
        """Check the options; called once, for the recipe's environment.

        Raises:
            RecipeError: If it cannot be played.
        """
        ...


@runtime_checkable
class HasRequirements(Protocol):
    """A game or an environment that requires packages or programs."""

    needs: Iterable[Requirement]
    """Requirements; checked when a recipe is loaded."""


OPTIONAL = (
    Snapshots, OptionalSnapshots, GivesVerdict, Replayable, Stateless, HasAdmissibleActions, ShowsTools, HoldsTools,
    Seats, TakesSeat, HasText, HasOptionalVerdict, SelfChecking, HasRequirements, DeclaresEffects, DeclaresProvenance,
)  # fmt: skip
"""Optional protocols of an environment."""


def supports_snapshot(environment: object) -> bool:
    """Return whether an environment can be saved and restored by a snapshot."""
    return (
        environment.keeps
        if implements_protocol(environment, OptionalSnapshots)
        else implements_protocol(environment, Snapshots)
    )


def supports_forking(environment: object) -> bool:
    """Return whether an episode can start in the middle.

    This requires a snapshot, a replay of the same actions, or a stateless environment.
    """
    return stateless(environment) or supports_snapshot(environment) or replayable(environment)


def find_known_tools(environment: object) -> Sequence[ToolSpec]:
    """Return the tools of an environment that are known before an episode."""
    if implements_protocol(environment, ShowsTools) and environment.specs:
        return environment.specs
    return environment.toolset.specs if implements_protocol(environment, HoldsTools) else ()


# ------------------------------------------------------------ games: one command per turn

Isolation = Literal["object", "thread", "process"]
"""Execution of a game. `object`: any number of games in one thread. `thread`: one thread per game, since its calls
block. `process`: one process per game, since games share state by accident or must be killed."""


@dataclass(frozen=True, slots=True)
class GameObservation:
    """Output of a game at its start or after a command."""

    text: str
    reward: float | None = None
    terminated: bool = False
    """Whether the game reached a final state."""
    truncated: bool = False
    """Whether a limit of the game ended it."""
    understood: bool = True
    """Whether the command was valid."""
    author: Author = Author.ENVIRONMENT
    """Author of the text: `partner` for an opponent."""


class Game(Protocol):
    """An environment with one text command per turn: plain and synchronous, constructed for each episode.

    `OPTIONAL_OF_GAMES` lists its optional protocols; attributes are read from the class. Its snapshots (`Snapshots`)
    are bytes.
    """

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Start a task; the seed determines all random events of the game.

        Raises:
            TaskError: If the game does not know the task.
        """
        ...

    def act(self, command: str) -> GameObservation:
        """Execute a command; the answer to an invalid command shows valid ones."""
        ...

    def verdict(self) -> Mapping[str, Any]:
        """Return the result so far: `success`, `score` from 0 to 1 (the maximum), and counts."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


@runtime_checkable
class Named(Protocol):
    """A game with another name than its class."""

    name: str


@runtime_checkable
class Instructs(Protocol):
    """A game that explains how it is played."""

    instruction: str
    """Rules and syntax of commands; shown before the first text."""


@runtime_checkable
class FewCommands(Protocol):
    """A game with a small, constant set of commands."""

    commands: Iterable[str]
    """All commands."""


@runtime_checkable
class HasSolver(Protocol):
    """A game that has a solver."""

    def solve(self) -> str:
        """Return the expert's command in the current state; called before a command."""
        ...


@runtime_checkable
class Isolated(Protocol):
    """A game that declares its isolation; the default is `thread`, as its functions may block."""

    isolation: Isolation


@runtime_checkable
class AcceptsMultiline(Protocol):
    """A game that declares which part of a message is its command; the default is the last line."""

    multiline: bool
    """True if the command is the full text of a message."""


OPTIONAL_OF_GAMES = (
    Named, Instructs, FewCommands, HasAdmissibleActions, HasSolver, Isolated, SelfChecking, AcceptsMultiline,
    HasRequirements, Snapshots, Replayable,
)  # fmt: skip
"""Optional protocols of a game."""


def optional_protocols(part: object) -> tuple[type, ...]:
    """Return the optional protocols of an environment, or those of a game if `part` is not an environment."""
    return OPTIONAL if implements_protocol(part, Environment) else OPTIONAL_OF_GAMES


# ------------------------------------------------------------ simulated users


@dataclass(frozen=True, slots=True)
class Reply:
    """Message of a simulated user."""

    text: str
    ended: bool = False
    """Whether it is the user's last message; the episode ends."""
    reason: EndReason | None = None
    """End reason that is more specific: `timeout` if the user did not reply in time."""


class User(Protocol):
    """Conversation partner of the agent: a script, a model at an endpoint, or another policy.

    Plain or async; constructed for each episode. A user can have tools that act on the same state as the agent's tools
    (`Episode.shared`). `OPTIONAL_OF_USERS` lists its optional protocols.
    """

    def open(self, episode: Episode) -> Reply:
        """Return the user's first message."""
        ...

    def answer(self, text: str) -> Reply:
        """Return the user's reply to a message of the agent."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


OPTIONAL_OF_USERS = (GivesVerdict, Replayable)
"""Optional protocols of a user."""
