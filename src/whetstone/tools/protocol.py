"""Interfaces of tools: results, the state of an episode, and optional protocols of tool classes.

A tool is a typed function. Tools with state are the public methods of a class, with a new object for each episode:

    class Basket:
        def __init__(self, *, size: int = 10) -> None: ...
        def add(self, item: str) -> str: ...

The keyword-only arguments are options in a recipe. The protocols in `OPTIONAL` are optional.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from whetstone.capabilities import implements_protocol, protocol_members
from whetstone.chat.message import Image, Text
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
    """State that the tools of one episode receive and share."""

    task: Task
    seed: int
    shared: dict[str, Any] = field(default_factory=dict)
    """Objects that one tool creates and others use, by name, such as the folder of a sandbox."""


# ------------------------------------------------ optional protocols, also of simulated users and environments


@runtime_checkable
class OffersTools(Protocol):
    """A class whose tools are not its public methods."""

    def tools(self) -> Iterable[Any]:
        """Return typed functions; called after construction, after `open`, and after each call if `changing` is
        true."""
        ...


@runtime_checkable
class HasOpen(Protocol):
    """A class that prepares something before the first call."""

    def open(self, episode: Episode) -> Awaitable[None] | None:
        """Start an episode; sync or async, called once before the first call.

        Raises:
            InfrastructureError: A resource that the tool requires is not available.
        """
        ...


@runtime_checkable
class HasClose(Protocol):
    """A class that holds resources."""

    def close(self) -> Awaitable[None] | None:
        """Release the resources; sync or async, called once after the last use, also after failures."""
        ...


@runtime_checkable
class GivesVerdict(Protocol):
    """A class that judges the outcome of an episode."""

    def verdict(self) -> Awaitable[Mapping[str, Any]] | Mapping[str, Any]:
        """Return a mapping with `success`, `score` and other counts; sync or async.

        Called once after the last turn, whatever ended the episode. The mapping is stored with the trajectory.
        """
        ...


@runtime_checkable
class HasCost(Protocol):
    """A class that sets prices of calls."""

    def charge(self, name: str) -> tuple[str, float]:
        """Return (reason for a refusal, empty if none; cost); called before each call of any tool."""
        ...


@runtime_checkable
class Priced(Protocol):
    """A class with prices by tool name; each named tool must exist."""

    prices: Mapping[str, float]


@runtime_checkable
class DynamicTools(Protocol):
    """A class whose set of tools can change."""

    changing: bool
    """Whether the result of `tools()` can change: if true, it is called again after each call."""


@runtime_checkable
class SharedOptions(Protocol):
    """A class that shares something with other tools."""

    must_agree: Mapping[str, Any]
    """Options by name that must be equal in all classes that share the object."""


@runtime_checkable
class Replayable(Protocol):
    """A component that declares whether its state can be reproduced; without a declaration, it can."""

    replayable: bool
    """Whether the same calls or actions lead to the same state."""


@runtime_checkable
class Stateless(Protocol):
    """A component that declares whether it has state; without a declaration, it has."""

    stateless: bool
    """Whether a response depends only on its call or action. An interrupted episode then resumes after its recorded
    turns without a replay."""


@runtime_checkable
class HasSemantics(Protocol):
    """A class with behavior that a policy adapts to in training."""

    declared: Mapping[str, str]
    """Behavior by name, such as how long variables persist."""


@runtime_checkable
class ListsEveryTool(Protocol):
    """An object whose available tools change during an episode, and that can list all of them."""

    def every_tool(self) -> Iterable[Any]:
        """Return all tools that can become available."""
        ...


@runtime_checkable
class DeclaresProvenance(Protocol):
    """Tools, an environment or an actor whose episodes are not `sampled`: an expert, or a model of the world."""

    provenance: Provenance
    """Provenance of the episodes, such as `imagined` if a model predicts results."""


OPTIONAL = (
    OffersTools, HasOpen, HasClose, GivesVerdict, HasCost, Priced, DynamicTools, SharedOptions, Replayable, Stateless,
    HasSemantics, DeclaresEffects, ListsEveryTool, DeclaresProvenance,
)  # fmt: skip
"""Optional protocols of a tool class."""
LIFETIME = protocol_members(OffersTools, HasOpen, HasClose, GivesVerdict, HasCost, ListsEveryTool)
"""Public methods of a tool class that are not tools."""


def replayable(part: object) -> bool:
    """Return whether the same calls or actions lead to the same state."""
    return not implements_protocol(part, Replayable) or part.replayable


def stateless(part: object) -> bool:
    """Return whether a response depends only on its call or action."""
    return implements_protocol(part, Stateless) and part.stateless


def find_provenance(*parts: object) -> Provenance:
    """Return the first provenance other than `sampled` that one of the parts of an episode declares.

    Raises:
        ValueError: A part declares a value that is not a provenance.
    """
    declared = (Provenance(part.provenance) for part in parts if implements_protocol(part, DeclaresProvenance))
    return next((each for each in declared if each is not Provenance.SAMPLED), Provenance.SAMPLED)
