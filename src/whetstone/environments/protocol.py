"""The seam of the environments room: three methods, and a result that says how the episode goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from whetstone.chat import Message, ToolSpec
from whetstone.contracts import fulfils
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
    from whetstone.environments.dependencies import Need
    from whetstone.tools import Toolset


NEW_CONVERSATION = -1
"""As `Observation.conversation`: the agent reads this observation and nothing before it."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent is shown."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    """The tools that are available from now on; empty after an action if they are those of the turn before in the same
    conversation."""
    declared: tuple[tuple[str, str], ...] = ()
    """By name, how the world works where models get used to it; read at reset."""
    author: Author = Author.ENVIRONMENT
    """Who wrote it: `partner` for a simulated user or an opponent."""
    conversation: int = 0
    """Number of the conversation that it extends. A number that was not used before, or `NEW_CONVERSATION`, starts one
    without earlier messages."""
    agent: str = ""
    """Name of the agent that reads it; empty if the episode has one agent, or names none."""

    def __post_init__(self) -> None:
        if self.author not in (Author.ENVIRONMENT, Author.OTHER_AGENT):  # the policy's own text is the sampled tokens
            raise ValueError(f"a world writes as environment or partner, not as {self.author}")


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an action led to."""

    observation: Observation
    reward: float | None = None
    terminated: bool = False
    """The environment reached an end of its own."""
    truncated: bool = False
    """The environment cut the episode short."""
    reason: EndReason | None = None
    """A closer word for the ending than `terminated` or `truncated`, such as `tool_stopped`."""
    calls: tuple[CallRecord, ...] = ()
    """The tool calls of the action, in order."""
    instead: Message | None = None
    """What was carried out in the action's place, if anything: it is what later turns read, and the action itself is
    trained beside it."""

    @property
    def ended(self) -> EndReason | None:
        """How the episode ended with this step; None where it goes on."""
        if self.reason is not None:
            return self.reason
        if self.terminated:
            return EndReason.TERMINATED
        return EndReason.TRUNCATED if self.truncated else None


class Environment(Protocol):
    """Where an episode happens. One instance serves one episode at a time; `close` runs on every path.

    An episode may part from another in its middle where the environment can be brought there again: by what it keeps
    (`Snapshots`), or by the same actions, unless it says otherwise (`Replayable`). What else it may have, the protocols
    of `OPTIONAL` say; one around another is asked for what the other has.
    """

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Begin: the opening messages and the tools on offer."""
        ...

    async def step(self, action: Message) -> StepResult:
        """Carry out one action of the agent."""
        ...

    async def close(self) -> None:
        """Let go of everything held."""
        ...


# ------------------------------------------------------------ what an environment may have besides


@runtime_checkable
class Snapshots(Protocol):
    """It can be left and come back to: an episode may part from another in its middle."""

    def snapshot(self) -> Any:
        """All there is to know of where it is; plain or async, asked behind a turn that others may part from."""
        ...

    def restore(self, snapshot: Any) -> Awaitable[None] | None:
        """Go back to where that was taken; plain or async, asked of one that has begun the same task."""
        ...


@runtime_checkable
class Keeps(Protocol):
    """It has the methods of `Snapshots`, and not always the means."""

    keeps: bool
    """False where they cannot be asked."""


@runtime_checkable
class Admits(Protocol):
    """It knows which actions do something here: asked of games by whoever plays them without a model."""

    def admissible(self) -> Awaitable[Sequence[str]] | Sequence[str]:
        """Their commands, at any turn; async of an environment, plain of a game."""
        ...


@runtime_checkable
class ShowsTools(Protocol):
    """The tools on offer are known before an episode begins."""

    specs: Sequence[ToolSpec]
    """Read where it has just been made."""


@runtime_checkable
class HoldsTools(Protocol):
    """Its tools are a toolset, which says more of them than their specs."""

    toolset: Toolset


@runtime_checkable
class Seats(Protocol):
    """It is played by several, each in a seat."""

    roles: Sequence[str]
    """Names of the seats."""


@dataclass(frozen=True, slots=True)
class SeatRequest:
    """The seat of an episode in a game of several players."""

    role: str
    """Name of the seat."""
    table: str
    """Name of the game, the same in the episodes of all its players."""
    seed: int
    """Seed of the game."""


@runtime_checkable
class TakesSeat(Protocol):
    """An environment of a game of several players, one episode per seat."""

    def take_seat(self, seat: SeatRequest) -> None:
        """Set the seat of the next episode; called before `reset`. Without it, the episode has a game to itself."""
        ...


@runtime_checkable
class Speaks(Protocol):
    """It says whether there is more in it to read than its tasks; what says nothing has."""

    speaks: bool
    """False where it shows a task and what plain functions return, and nothing else."""


@runtime_checkable
class Judges(Protocol):
    """It has a `verdict`, and not always something to say in it."""

    judges: bool
    """False where nobody in it can tell what became of an episode."""


@runtime_checkable
class Checks(Protocol):
    """It can tell before any episode whether it can be played as it was made."""

    def check(self) -> None:
        """Look; once, of the recipe's.

        Raises:
            RecipeError: It cannot.
        """
        ...


@runtime_checkable
class Needs(Protocol):
    """A game or an environment that takes more than Python."""

    needs: Iterable[Need]
    """What has to be installed; it is looked for when a recipe is loaded."""


OPTIONAL = (
    Snapshots, Keeps, GivesVerdict, Replayable, Stateless, Admits, ShowsTools, HoldsTools, Seats, TakesSeat, Speaks,
    Judges, Checks, Needs, DeclaresEffects, DeclaresProvenance,
)  # fmt: skip
"""What an environment may have."""


def can_be_kept(environment: object) -> bool:
    """Whether it can be left and come back to by a snapshot."""
    return environment.keeps if fulfils(environment, Keeps) else fulfils(environment, Snapshots)


def can_be_gone_back_to(environment: object) -> bool:
    """Whether an episode may begin in its middle, by a snapshot, by the same actions, or without either."""
    return stateless(environment) or can_be_kept(environment) or replayable(environment)


def tools_shown(environment: object) -> Sequence[ToolSpec]:
    """The tools it will offer, as far as it shows them before an episode."""
    if fulfils(environment, ShowsTools) and environment.specs:
        return environment.specs
    return environment.toolset.specs if fulfils(environment, HoldsTools) else ()


# ------------------------------------------------------------ games: worlds of one command a turn

Isolation = Literal["object", "thread", "process"]
"""How a game may be shared: `object`: any number beside each other in one process; `thread`: each in a thread of its
own, as it blocks; `process`: each in a process of its own, as it shares something by accident or has to be killed."""


@dataclass(frozen=True, slots=True)
class GameObservation:
    """What a game shows, at its beginning or behind a command."""

    text: str
    reward: float | None = None
    terminated: bool = False
    """It reached an end of its own."""
    truncated: bool = False
    """It was cut short by a limit of its own."""
    understood: bool = True
    """Whether the command was one."""
    author: Author = Author.ENVIRONMENT
    """Who wrote the text: `partner` for an opponent."""


class Game(Protocol):
    """A world that is played with one command a turn: plain and synchronous, made anew for each episode.

    What it may have besides, the protocols of `OPTIONAL_OF_GAMES` say; attributes are read of the class. What it keeps
    (`Snapshots`) is bytes.
    """

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Begin a task; what is random in its course comes from the seed.

        Raises:
            TaskError: It does not know the task.
        """
        ...

    def act(self, command: str) -> GameObservation:
        """Carry out a command; one that is none is answered with what would be one."""
        ...

    def verdict(self) -> Mapping[str, Any]:
        """What became of it so far: `success`, `score` from 0 to 1 where 1 is all there is, and what it counted."""
        ...

    def close(self) -> None:
        """Let go of everything held."""
        ...


@runtime_checkable
class Named(Protocol):
    """A game that is not called what its class is."""

    name: str


@runtime_checkable
class Instructs(Protocol):
    """A game that says how it is played."""

    instruction: str
    """How, and how commands are written; stands in front of the first text."""


@runtime_checkable
class FewCommands(Protocol):
    """A game with always the same few commands."""

    commands: Iterable[str]
    """All there are."""


@runtime_checkable
class Solves(Protocol):
    """A game that knows how it is won."""

    def solve(self) -> str:
        """What an expert would say here; asked in front of a command."""
        ...


@runtime_checkable
class Isolated(Protocol):
    """A game that says how it may be shared; one that says nothing is a `thread`, as its functions may block."""

    isolation: Isolation


@runtime_checkable
class ReadsWhole(Protocol):
    """A game that says what of an answer is its command; of what says nothing, the last line."""

    whole: bool
    """True where it is all of what is said."""


OPTIONAL_OF_GAMES = (
    Named, Instructs, FewCommands, Admits, Solves, Isolated, Checks, ReadsWhole, Needs, Snapshots, Replayable,
)  # fmt: skip
"""What a game may have."""


def optional_protocols(part: object) -> tuple[type, ...]:
    """Return the optional protocols of an environment, or those of a game if `part` is not an environment."""
    return OPTIONAL if fulfils(part, Environment) else OPTIONAL_OF_GAMES


# ------------------------------------------------------------ users: who is spoken to


@dataclass(frozen=True, slots=True)
class Reply:
    """What a user says."""

    text: str
    ended: bool = False
    """Whether that was the last word: the episode is over."""
    reason: EndReason | None = None
    """A closer word for that ending: `timeout` where he said nothing in time."""


class User(Protocol):
    """Who the agent speaks to: a script, a model behind an address, or another policy. Plain or async; made anew for
    each episode. He may hold tools of his own, in the same world as the agent's (`Episode.shared`). What he may have
    besides, the protocols of `OPTIONAL_OF_USERS` say."""

    def open(self, episode: Episode) -> Reply:
        """His first words."""
        ...

    def answer(self, text: str) -> Reply:
        """What he says to what the agent said."""
        ...

    def close(self) -> None:
        """Let go of everything held."""
        ...


OPTIONAL_OF_USERS = (GivesVerdict, Replayable)
"""What a user may have."""
