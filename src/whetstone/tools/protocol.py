"""The seam of the tools room: what a tool may give back, and what tools of one episode may hold together.

A tool is a typed function. Tools that remember something are the public methods of a class, made anew for each episode:

    class Basket:
        def __init__(self, *, size: int = 10) -> None: ...
        def add(self, item: str) -> str: ...

Its keyword-only arguments are options in a recipe. What it may have besides, the protocols of `OPTIONAL` say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from whetstone.chat.message import Image, Text
from whetstone.contracts import fulfils, names_of
from whetstone.errors import InfrastructureError
from whetstone.provenance import Provenance
from whetstone.tools.side_effects import DeclaresEffects
from whetstone.trajectory import CallRecord, Task

Outcome = Literal[
    "ok", "tool_error", "tool_failed", "unavailable", "timeout", "stopped", "budget_exhausted", "refused_by_policy",
    "not_called",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a call. A tool returns one if its content or outcome is not that of a plain value."""

    content: tuple[Text | Image, ...]
    outcome: Outcome = "ok"
    place: str = ""
    """File, line and function of the user's code that raised, for people; the model does not read it."""
    failure: InfrastructureError | None = None
    """Failure of the infrastructure, which ends the episode whatever was called."""


class ToolUnavailable(InfrastructureError):
    """The backend of a tool failed in every attempt.

    Args:
        calls: Records of all calls of the turn.
    """

    def __init__(self, message: str, calls: tuple[CallRecord, ...]) -> None:
        super().__init__(message)
        self.calls = calls


@dataclass(frozen=True, slots=True)
class Episode:
    """What tools of one episode know of it, and share."""

    task: Task
    seed: int
    shared: dict[str, Any] = field(default_factory=dict)
    """By name, what one tool has made and others use, too: the folder of a sandbox."""


# ------------------------------------------------------------ what may be there besides; users and worlds have some


@runtime_checkable
class OffersTools(Protocol):
    """Tools that are not the public methods."""

    def tools(self) -> Iterable[Any]:
        """Typed functions; asked at making, behind `open`, and behind each call where they are `changing`."""
        ...


@runtime_checkable
class Opens(Protocol):
    """What has to be there before the first call."""

    def open(self, episode: Episode) -> Awaitable[None] | None:
        """An episode begins; plain or async, once before the first call.

        Raises:
            InfrastructureError: What it stands on is not there.
        """
        ...


@runtime_checkable
class Closes(Protocol):
    """Something is held, and let go of."""

    def close(self) -> Awaitable[None] | None:
        """Let go of it; plain or async, once behind the last use, on every path."""
        ...


@runtime_checkable
class GivesVerdict(Protocol):
    """It can tell what became of an episode."""

    def verdict(self) -> Awaitable[Mapping[str, Any]] | Mapping[str, Any]:
        """A mapping with `success`, `score` and whatever else was counted; plain or async, asked once behind the last
        turn, whoever ended the episode. It is kept with the trajectory."""
        ...


@runtime_checkable
class Charges(Protocol):
    """Calls have a price."""

    def charge(self, name: str) -> tuple[str, float]:
        """(why it cannot be paid for, empty where it can; what it costs), asked before each call of any tool."""
        ...


@runtime_checkable
class Priced(Protocol):
    """Prices by the names of tools, which have to be there."""

    prices: Mapping[str, float]


@runtime_checkable
class Changing(Protocol):
    """Tools may come and go."""

    changing: bool
    """True where `tools()` is not always the same: it is read anew behind each call."""


@runtime_checkable
class MustAgree(Protocol):
    """It shares something with other tools."""

    must_agree: Mapping[str, Any]
    """By name, the options that all which share it must have alike."""


@runtime_checkable
class Replayable(Protocol):
    """It says whether it can be led to the same place again; what says nothing can."""

    replayable: bool
    """False where the same calls or actions do not lead there."""


@runtime_checkable
class Stateless(Protocol):
    """It says whether it remembers anything; what says nothing does."""

    stateless: bool
    """True where an answer depends on its call, or action, alone: an episode that was cut off by a kill then goes on
    behind its recorded turns without playing them again."""


@runtime_checkable
class Declares(Protocol):
    """Models get used to how it works."""

    declared: Mapping[str, str]
    """By name, how: how long variables last."""


@runtime_checkable
class ListsEveryTool(Protocol):
    """Tools that are not on offer all the time."""

    def every_tool(self) -> Iterable[Any]:
        """Return all tools that can come on offer."""
        ...


@runtime_checkable
class DeclaresProvenance(Protocol):
    """Tools, an environment or an actor whose episodes are not `sampled`: an expert, or a model of the world."""

    provenance: Provenance
    """Provenance of the episodes, such as `imagined` if a model predicts results."""


OPTIONAL = (
    OffersTools, Opens, Closes, GivesVerdict, Charges, Priced, Changing, MustAgree, Replayable, Stateless, Declares,
    DeclaresEffects, ListsEveryTool, DeclaresProvenance,
)  # fmt: skip
"""What a class of tools may have."""
LIFETIME = names_of(OffersTools, Opens, Closes, GivesVerdict, Charges, ListsEveryTool)
"""Public methods of a class of tools that are none."""


def replayable(part: object) -> bool:
    """Whether the same calls, or actions, lead to the same place again."""
    return not fulfils(part, Replayable) or part.replayable


def stateless(part: object) -> bool:
    """Whether an answer depends on the call, or action, alone."""
    return fulfils(part, Stateless) and part.stateless


def provenance_of(*parts: object) -> Provenance:
    """Return the first provenance other than `sampled` that one of the parts of an episode declares.

    Raises:
        ValueError: A part declares a value that is not a provenance.
    """
    declared = (Provenance(part.provenance) for part in parts if fulfils(part, DeclaresProvenance))
    return next((each for each in declared if each is not Provenance.SAMPLED), Provenance.SAMPLED)
