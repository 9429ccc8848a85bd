"""Protocols of tools: results, the state of an episode, and optional methods of tool classes.

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
from whetstone.trajectory import CallRecord, InnerCall, Task

Outcome = Literal[
    "ok", "tool_error", "tool_failed", "unavailable", "timeout", "stopped", "budget_exhausted", "refused_by_policy",
    "not_called",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a tool call. A tool returns it if a plain value cannot express its content or outcome."""

    content: tuple[Text | Image, ...]
    """Text and images that the model reads."""
    outcome: Outcome = "ok"
    """Outcome of the call, such as `ok` or `tool_error`; stored with the trajectory."""
    place: str = ""
    """File, line and function of the user's code that raised, for people; the model does not read it."""
    failure: InfrastructureError | None = None
    """Failure of the infrastructure, which ends the episode; None in most cases."""
    inner: tuple[InnerCall, ...] = ()
    """Calls of other tools that the code of this call made, in order."""


class ToolUnavailable(InfrastructureError):
    """Failure of a tool's backend in every attempt; it ends the episode.

    Args:
        message: Description of the failure.
        calls: Records of all calls of the turn.
    """

    def __init__(self, message: str, calls: tuple[CallRecord, ...]) -> None:
        super().__init__(message)
        self.calls = calls


@dataclass(frozen=True, slots=True)
class Episode:
    """State of one episode that all its tools receive in `open` and share."""

    task: Task
    """Task of the episode."""
    seed: int
    """Seed for all randomness of the tools."""
    shared: dict[str, Any] = field(default_factory=dict)
    """Objects by name that one tool creates and others use, such as the session of a sandbox. `toolset` is the toolset
    that opened the episode."""


# ------------------------------------------------ optional protocols, also of simulated users and environments


@runtime_checkable
class OffersTools(Protocol):
    """Tool class whose tools are not its public methods, such as the tools of a server."""

    def tools(self) -> Iterable[Any]:
        """Return the tools as typed functions or `Tool` objects.

        Called after construction, after `open`, and after each call if `changing` is true.
        """
        ...


@runtime_checkable
class HasOpen(Protocol):
    """Tool class that prepares something before the first call of an episode."""

    def open(self, episode: Episode) -> Awaitable[None] | None:
        """Start an episode; sync or async, called once before the first call.

        Args:
            episode: State of the episode, shared with all its tools.

        Raises:
            InfrastructureError: If a resource that the tool requires is not available.
        """
        ...


@runtime_checkable
class HasClose(Protocol):
    """Tool class that holds resources, such as a connection or a process."""

    def close(self) -> Awaitable[None] | None:
        """Release the resources.

        The method is sync or async, and is called once after the last use, also after failures.
        """
        ...


def check_verdict(verdict: Any, method: str = "verdict()") -> Mapping[str, Any]:
    """Return the verdict that a method of an environment or a tool returned.

    Raises:
        TypeError: It is not a mapping.
    """
    if isinstance(verdict, Mapping):
        return verdict
    raise TypeError(f"{method} returned {repr(verdict)[:60]}, not a mapping such as {{'success': True}}")


@runtime_checkable
class GivesVerdict(Protocol):
    """Tool class that judges the outcome of an episode."""

    def verdict(self) -> Awaitable[Mapping[str, Any]] | Mapping[str, Any]:
        """Return the verdict on the episode: a mapping with `success`, `score` and other counts.

        The method is sync or async.

        Called once after the last turn, whatever ended the episode. The mapping is stored with the trajectory.
        """
        ...


@runtime_checkable
class ObservesTurns(Protocol):
    """Tool class that looks at its state after each turn with calls, such as for milestones."""

    def observe_turn(self, number: int) -> Awaitable[None] | None:
        """Look at the state after the calls of an action; sync or async. The model does not see the result.

        Args:
            number: Number of the action in the episode, from 1.
        """
        ...


@runtime_checkable
class HasCost(Protocol):
    """Tool class that sets the prices of calls, such as a budget."""

    def charge(self, name: str) -> tuple[str, float]:
        """Charge a call; called before each call of any tool.

        Args:
            name: Name of the called tool.

        Returns:
            (reason to refuse the call, empty to allow it; cost of the call).
        """
        ...


@runtime_checkable
class Priced(Protocol):
    """Tool class with a price list."""

    prices: Mapping[str, float]
    """Price of a call by tool name; a tool of each name must exist."""


@runtime_checkable
class DynamicTools(Protocol):
    """Tool class whose set of tools can change."""

    changing: bool
    """Whether the result of `tools()` can change; if true, it is called again after each call."""


@runtime_checkable
class SharedOptions(Protocol):
    """Tool class that shares an object with other tool classes, such as a sandbox."""

    must_agree: Mapping[str, Any]
    """Values of options by name that must be equal in all classes that share the object."""


@runtime_checkable
class Replayable(Protocol):
    """Component that declares whether its state can be reproduced.

    A component without a declaration can be replayed.
    """

    replayable: bool
    """Whether the same calls or actions lead to the same state."""


@runtime_checkable
class Stateless(Protocol):
    """Component that declares whether it has state.

    A component without a declaration has state.
    """

    stateless: bool
    """Whether a response depends only on its call or action.

    An interrupted episode of stateless components resumes after its recorded turns without a replay.
    """


@runtime_checkable
class HasSemantics(Protocol):
    """Tool class with behavior that a policy adapts to in training."""

    declared: Mapping[str, str]
    """Behavior by name, such as whether variables persist between calls; recorded with every trajectory."""


@runtime_checkable
class ListsEveryTool(Protocol):
    """Tool class whose available tools change during an episode, and that can list all of them in advance."""

    def every_tool(self) -> Iterable[Any]:
        """Return all tools that can become available during an episode."""
        ...


@runtime_checkable
class DeclaresProvenance(Protocol):
    """Component whose episodes are not `sampled`, such as an expert or a model that simulates tools."""

    provenance: Provenance
    """Provenance of the episodes, such as `imagined` if a model predicts results."""


OPTIONAL = (
    OffersTools, HasOpen, HasClose, GivesVerdict, HasCost, Priced, DynamicTools, SharedOptions, Replayable, Stateless,
    HasSemantics, DeclaresEffects, ListsEveryTool, DeclaresProvenance,
)  # fmt: skip
"""Optional protocols that a tool class can implement."""
LIFETIME = protocol_members(OffersTools, HasOpen, HasClose, GivesVerdict, HasCost, ListsEveryTool)
"""Names of public methods of a tool class that are not tools."""


def is_replayable(part: object) -> bool:
    """Return whether the same calls or actions lead a component to the same state.

    The result is True without a declaration.
    """
    return not implements_protocol(part, Replayable) or part.replayable


def is_stateless(part: object) -> bool:
    """Return whether a response of a component depends only on its call or action.

    The result is False without a declaration.
    """
    return implements_protocol(part, Stateless) and part.stateless


def find_provenance(*parts: object) -> Provenance:
    """Return the first provenance other than `sampled` that a component declares.

    The result is `sampled` if none does.

    Args:
        parts: Components of an episode.

    Raises:
        ValueError: If a component declares a value that is not a provenance.
    """
    declared = (Provenance(part.provenance) for part in parts if implements_protocol(part, DeclaresProvenance))
    return next((each for each in declared if each is not Provenance.SAMPLED), Provenance.SAMPLED)
