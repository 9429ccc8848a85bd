"""The seam of the environments room: three methods, and a result that says how the episode goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from whetstone.chat import Message, ToolSpec
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Author, CallRecord, EndReason, Task


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent is shown."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    """The tools on offer from here on; empty behind an action where they are those of before."""
    declared: tuple[tuple[str, str], ...] = ()
    """By name, how the world works where models get used to it; read at reset."""
    author: Author = Author.ENVIRONMENT
    """Who wrote it: `partner` for a simulated user or an opponent."""

    def __post_init__(self) -> None:
        if self.author not in (Author.ENVIRONMENT, Author.PARTNER):  # what the policy says is what was sampled
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

    An episode may part from another in its middle where the environment can be brought there again: `snapshot()` says
    all there is to know, and `restore(snapshot)` on one that has begun the same task goes
    back (`keeps = False` where it has these and cannot); or the same actions lead there. One of which
    neither holds says `replayable = False`.

    `verdict()`, where there is one, says what became of the world: a mapping with `success`, `score` and whatever else
    it counted, asked once behind the last turn, whoever ended the episode. It is kept with the trajectory.

    One whose answers depend on the action alone may say so with an attribute `stateless = True`: an episode that was
    cut off by a kill then goes on behind its recorded turns without playing them again.
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


# ------------------------------------------------------------ games: worlds of one command a turn

Isolation = Literal["object", "thread", "process"]
"""How a game may be shared: `object`: any number beside each other in one process; `thread`: each in a thread of its
own, as it blocks; `process`: each in a process of its own, as it shares something by accident or has to be killed."""


@dataclass(frozen=True, slots=True)
class Shown:
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

    What it may have besides:

        instruction      how it is played and how commands are written; stands in front of the first text
        commands         all there are, where they are always the same few
        admissible()     the commands that do something here
        solve()          what an expert would say here
        isolation        `object` unless it says otherwise; see `Isolation`
        check()          sees that it can be played as it was made; raises RecipeError, once and before any episode
        whole            True where all of what is said is the command, not its last line
        needs            what has to be installed; see `needs.py`
        snapshot()       all there is to know, as bytes; `restore(bytes)` on one that has begun the same task goes back
        replayable       False where the same commands do not lead to the same place again
    """

    def begin(self, task: Task, seed: int) -> Shown:
        """Begin a task; what is random in its course comes from the seed.

        Raises:
            TaskError: It does not know the task.
        """
        ...

    def act(self, command: str) -> Shown:
        """Carry out a command; one that is none is answered with what would be one."""
        ...

    def verdict(self) -> Mapping[str, Any]:
        """What became of it so far: `success`, `score` from 0 to 1 where 1 is all there is, and what it counted."""
        ...

    def close(self) -> None:
        """Let go of everything held."""
        ...


# ------------------------------------------------------------ users: who is spoken to


@dataclass(frozen=True, slots=True)
class Reply:
    """What a user says."""

    text: str
    ended: bool = False
    """Whether that was the last word: the episode is over."""


class User(Protocol):
    """Who the agent speaks to: a script, a model behind an address, or another policy. Plain or async; made anew for
    each episode. He may hold tools of his own, in the same world as the agent's (`Episode.shared`)."""

    def open(self, episode: Episode) -> Reply:
        """His first words."""
        ...

    def answer(self, text: str) -> Reply:
        """What he says to what the agent said."""
        ...

    def close(self) -> None:
        """Let go of everything held."""
        ...
