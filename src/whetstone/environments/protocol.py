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
    is_replayable,
    is_stateless,
)
from whetstone.tools.side_effects import DeclaresEffects
from whetstone.trajectory import Author, CallRecord, EndReason, Task

if TYPE_CHECKING:
    from whetstone.environments.dependencies import Requirement
    from whetstone.tools import Toolset


NEW_CONVERSATION = -1
"""Value of `Observation.conversation` that starts a conversation without earlier messages."""
MAX_BRANCH_POINTS = 4
"""Number of the last actions of a conversation after which a new conversation can start (`Observation.branch`)."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Messages and tools that the agent receives at reset and after each action."""

    messages: tuple[Message, ...]
    """New messages of the conversation since the agent's last action; at reset, the whole prompt."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that are available from now on; empty after an action if the tools of the conversation did not change."""
    declared: tuple[tuple[str, str], ...] = ()
    """Facts about the environment that models adapt to, as pairs (name, value); read at reset only."""
    author: Author = Author.ENVIRONMENT
    """Author of the messages: the environment, or another agent (`partner`) for a simulated user or an opponent."""
    conversation: int = 0
    """Number of the conversation that the messages extend. An unused number, or `NEW_CONVERSATION`, starts a
    conversation without earlier messages."""
    agent: str = ""
    """Name of the agent that reads the observation; empty if the episode has only one agent or does not name its
    agents."""
    branch: tuple[int, int] | None = None
    """(conversation, number of its action from 0) whose tokens the new `conversation` starts with: one of the last
    `MAX_BRANCH_POINTS` actions. Only environments with `AnswersConcurrently` can start branches."""

    def __post_init__(self) -> None:
        if self.author not in (Author.ENVIRONMENT, Author.OTHER_AGENT):  # the policy's own text is the sampled tokens
            raise ValueError(f"the author of an observation must be environment or partner, got {self.author}")


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one action: the next observation, the reward, the end of the episode."""

    observation: Observation
    """Messages that the agent reads next; without messages if the episode ended."""
    reward: float | None = None
    """Reward of the action; None if the environment gives no reward per action."""
    terminated: bool = False
    """Whether the environment reached a final state."""
    truncated: bool = False
    """Whether the environment cut the episode short, such as by a limit of steps."""
    reason: EndReason | None = None
    """End reason that is more specific than `terminated` or `truncated`, such as `tool_stopped`; ends the episode."""
    calls: tuple[CallRecord, ...] = ()
    """Records of the tool calls of the action, in order."""
    executed_action: Message | None = None
    """Action that was executed instead of the policy's, if any. Later turns show the executed action; training uses the
    policy's."""

    @property
    def ended(self) -> EndReason | None:
        """Return the end reason of the episode, or None if the episode continues.

        `reason` takes precedence over `terminated`, and `terminated` over `truncated`.
        """
        if self.reason is not None:
            return self.reason
        if self.terminated:
            return EndReason.TERMINATED
        return EndReason.TRUNCATED if self.truncated else None


class Environment(Protocol):
    """Interface of an environment: executes the actions of one episode.

    The rollout creates an instance for each episode, calls `reset` once, `step` after each turn of the policy and
    always `close`. A server may reuse an instance and call `reset` again. Methods can be plain or async.

    An episode can be forked at a turn if the environment can return to that state: by a snapshot (`Snapshots`), or by
    the same actions, which is assumed unless the environment declares otherwise (`Replayable`). `OPTIONAL` lists the
    other optional protocols. A wrapper has the optional protocols of the environment that it wraps.
    """

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """Start an episode and return the initial messages and the available tools.

        Args:
            task: Task of the episode.
            seed: Seed of all random events of the episode; the same task, seed and actions give the same episode.

        Raises:
            TaskError: If the environment does not support the task.
        """
        ...

    async def step(self, action: Message) -> StepResult:
        """Execute one action of the agent and return its result.

        An invalid action (an unknown tool, arguments that cannot be parsed) does not raise: its error is a message of
        the observation, which the model reads.

        Raises:
            InfrastructureError: If a service that the environment depends on failed; the episode then has no score.
        """
        ...

    async def close(self) -> None:
        """Release all resources of the environment.

        Always called at the end of an episode, also if `reset` or `step` raised.
        """
        ...


# ------------------------------------------------------------ optional protocols of environments


@runtime_checkable
class AnswersConcurrently(Protocol):
    """Optional protocol of an environment whose agent sends requests of several conversations at once.

    The rollout then calls `answer_request` and `next_request` instead of `step`, so that the actions of all waiting
    conversations are sampled at the same time. A wrapper that defines `step` is stepped instead.
    """

    async def answer_request(self, conversation: int, action: Message) -> None:
        """Answer the pending request of a conversation, without waiting for the next request."""
        ...

    async def next_request(self) -> Observation | None:
        """Return the next request as an observation, in the order of arrival; None if the agent has ended."""
        ...


@runtime_checkable
class Snapshots(Protocol):
    """Optional protocol of an environment whose state can be saved and restored.

    Episodes of such an environment can be forked.
    """

    def snapshot(self) -> Any:
        """Return the complete state of the environment.

        Called after a turn from which another episode can be forked. Plain or async.
        """
        ...

    def restore(self, snapshot: Any) -> Awaitable[None] | None:
        """Restore a state that `snapshot` returned.

        Called on an environment that was reset with the same task. Plain or async.
        """
        ...


@runtime_checkable
class OptionalSnapshots(Protocol):
    """Optional protocol of an environment that only sometimes supports `Snapshots`."""

    keeps: bool
    """Whether `snapshot` and `restore` can be called."""


@runtime_checkable
class HasAdmissibleActions(Protocol):
    """Optional protocol of an environment or game that lists its admissible actions.

    Players without a model use the list, such as the random policy of `whetstone environments check`.
    """

    def admissible(self) -> Awaitable[Sequence[str]] | Sequence[str]:
        """Return the commands that are admissible in the current state.

        An environment can implement the method as async; a game must be synchronous.
        """
        ...


@runtime_checkable
class ShowsTools(Protocol):
    """Optional protocol of an environment whose tools are known before an episode."""

    specs: Sequence[ToolSpec]
    """Tools of every episode; read directly after construction."""


@runtime_checkable
class HoldsTools(Protocol):
    """Optional protocol of an environment whose tools are a `Toolset`.

    A toolset has more information than the tool specs.
    """

    toolset: Toolset
    """Tools of the environment."""


@runtime_checkable
class Seats(Protocol):
    """Optional protocol of a game or environment with several named seats."""

    roles: Sequence[str]
    """Names of the seats, in the order of the game."""


@dataclass(frozen=True, slots=True)
class SeatRequest:
    """Seat that the rollout assigns to an episode in a game of several players."""

    role: str
    """Name of the seat."""
    table: str
    """Name of the game, equal for the episodes of all its players; empty if scripts play the other seats."""
    seed: int
    """Seed of the game, equal for all its players."""


@runtime_checkable
class TakesSeat(Protocol):
    """Optional protocol of an environment whose episodes each play one seat of a game."""

    def take_seat(self, seat: SeatRequest) -> None:
        """Set the seat of the next episode.

        Called before `reset`. Without this call, the episode plays the first seat, and scripts play the others.
        """
        ...


@runtime_checkable
class HasText(Protocol):
    """Optional protocol of an environment that declares whether it adds text.

    Without the declaration, its observations may contain more text than its tasks.
    """

    speaks: bool
    """False if the environment shows only the task and the results of plain functions."""


@runtime_checkable
class HasOptionalVerdict(Protocol):
    """Optional protocol of an environment whose `verdict` can be empty."""

    judges: bool
    """False if no component of the environment can judge the result of an episode."""


@runtime_checkable
class SelfChecking(Protocol):
    """Optional protocol of an environment or game that checks its options."""

    def check(self) -> None:
        """Check that the environment can be played with its options.

        Called once on a separate instance, when the components of a recipe are created.

        Raises:
            RecipeError: If it cannot be played.
        """
        ...


@runtime_checkable
class HasRequirements(Protocol):
    """Optional protocol of a game or environment that requires packages or programs."""

    needs: Iterable[Requirement]
    """Required packages and programs; checked when a recipe is loaded."""


OPTIONAL = (
    Snapshots, OptionalSnapshots, GivesVerdict, Replayable, Stateless, HasAdmissibleActions, ShowsTools, HoldsTools,
    Seats, TakesSeat, HasText, HasOptionalVerdict, SelfChecking, HasRequirements, DeclaresEffects, DeclaresProvenance,
    AnswersConcurrently,
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
    """Return whether an episode of the environment can be forked at a turn.

    Forking requires a snapshot, a replay of the same actions, or a stateless environment.
    """
    return is_stateless(environment) or supports_snapshot(environment) or is_replayable(environment)


def find_known_tools(environment: object) -> Sequence[ToolSpec]:
    """Return the tools of an environment that are known before an episode.

    Empty if there are none.
    """
    if implements_protocol(environment, ShowsTools) and environment.specs:
        return environment.specs
    return environment.toolset.specs if implements_protocol(environment, HoldsTools) else ()


# ------------------------------------------------------------ games: one command per turn

Isolation = Literal["object", "thread", "process"]
"""How a game is executed. `object`: any number of games in one thread. `thread`: one thread per game, for calls that
block. `process`: one process per game, for games that share state by accident or must be killed."""


@dataclass(frozen=True, slots=True)
class GameObservation:
    """Text, reward and end of a game after its start or a command."""

    text: str
    """Text that the player reads."""
    reward: float | None = None
    """Reward of the command; None if the game gives no reward per command."""
    terminated: bool = False
    """Whether the game reached a final state."""
    truncated: bool = False
    """Whether a limit of the game ended it."""
    understood: bool = True
    """Whether the command was valid."""
    author: Author = Author.ENVIRONMENT
    """Author of the text: the environment, or another agent (`partner`) for an opponent."""


class Game(Protocol):
    """Interface of a text game with one command per turn.

    A game is synchronous and created for each episode. `GameEnvironment` wraps a game as an environment and executes it
    in a thread or process of its choice. `OPTIONAL_OF_GAMES` lists the optional protocols of a game; their attributes
    are read from the class. Snapshots of a game (`Snapshots`) are bytes.
    """

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Start a task and return the first text.

        Args:
            task: Task of the episode.
            seed: Seed of all random events of the game.

        Raises:
            TaskError: If the game does not know the task.
        """
        ...

    def act(self, command: str) -> GameObservation:
        """Execute a command and return the game's text.

        An invalid command does not raise: it returns `understood=False` and a text that shows valid commands.
        """
        ...

    def verdict(self) -> Mapping[str, Any]:
        """Return the result so far: `success`, `score` and further counts.

        `score` is between 0 and 1, the maximum.
        """
        ...

    def close(self) -> None:
        """Release all resources of the game; called once at the end of the episode."""
        ...


@runtime_checkable
class Named(Protocol):
    """Optional protocol of a game whose name in recipes differs from its class name."""

    name: str
    """Name of the game in recipes."""


@runtime_checkable
class Instructs(Protocol):
    """Optional protocol of a game that explains its rules."""

    instruction: str
    """Rules and syntax of the commands; shown before the first text of the game."""


@runtime_checkable
class FewCommands(Protocol):
    """Optional protocol of a game with a small, constant set of commands."""

    commands: Iterable[str]
    """All commands of the game."""


@runtime_checkable
class HasSolver(Protocol):
    """Optional protocol of a game that can compute an expert's next command."""

    def solve(self) -> str:
        """Return the expert's command in the current state.

        Called before each command of a demonstration.
        """
        ...


@runtime_checkable
class Isolated(Protocol):
    """Optional protocol of a game that declares its isolation.

    The default is `thread`, since its calls may block.
    """

    isolation: Isolation
    """How the game is executed, unless the recipe sets `isolation`."""


@runtime_checkable
class AcceptsMultiline(Protocol):
    """Optional protocol of a game that declares which part of a message is a command.

    The default is the last line.
    """

    multiline: bool
    """Whether the full text of a message is the command, such as for SQL."""


OPTIONAL_OF_GAMES = (
    Named, Instructs, FewCommands, HasAdmissibleActions, HasSolver, Isolated, SelfChecking, AcceptsMultiline,
    HasRequirements, Snapshots, Replayable,
)  # fmt: skip
"""Optional protocols of a game."""


def optional_protocols(part: object) -> tuple[type, ...]:
    """Return the optional protocols of an environment or a game.

    An object that is not an `Environment` counts as a game.
    """
    return OPTIONAL if implements_protocol(part, Environment) else OPTIONAL_OF_GAMES


# ------------------------------------------------------------ simulated users


@dataclass(frozen=True, slots=True)
class Reply:
    """Message of a simulated user to the agent."""

    text: str
    """Text of the message."""
    ended: bool = False
    """Whether the message is the user's last; the episode then ends."""
    reason: EndReason | None = None
    """End reason that is more specific than `terminated`, such as `timeout` if the user did not reply in time."""


class User(Protocol):
    """Interface of a simulated user, the agent's conversation partner.

    A user is a script, a model at an endpoint, a person or another policy. `ToolEnvironment` creates one user per
    episode. Methods can be plain or async. A user can have tools that act on the same state as the agent's tools
    (`Episode.shared`). `OPTIONAL_OF_USERS` lists the optional protocols of a user.
    """

    def open(self, episode: Episode) -> Reply:
        """Return the user's first message of an episode, after the tools were opened."""
        ...

    def answer(self, text: str) -> Reply:
        """Return the user's reply to a message of the agent.

        Called after each action of the agent without a tool call.
        """
        ...

    def close(self) -> None:
        """Release all resources of the user; called at the end of the episode."""
        ...


OPTIONAL_OF_USERS = (GivesVerdict, Replayable)
"""Optional protocols of a simulated user."""
