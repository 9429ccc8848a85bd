"""The seam of the environments room: three methods, and a result that says how the episode goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from whetstone.chat import Message, ToolSpec
from whetstone.trajectory import CallRecord, EndReason, Task


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent is shown."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    """The tools on offer from here on; empty behind an action where they are those of before."""
    declared: tuple[tuple[str, str], ...] = ()
    """By name, how the world works where models get used to it; read at reset."""


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
    all there is to know, and `restore(snapshot)` on a fresh one goes back; or the same actions lead there. One of which
    neither holds says `replayable = False`.

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
