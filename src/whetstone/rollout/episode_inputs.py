"""Inputs of an episode: its limits, the turns shared with another episode, and the hooks of a method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from whetstone.rollout.protocol import ContextTransform, EpisodeKey, Rewrite, Siblings, Splice, Stop
from whetstone.rollout.reading import Overflow
from whetstone.trajectory import Costs, Turn
from whetstone.waiting import CLOSE_SECONDS


@dataclass(frozen=True, slots=True)
class Limits:
    """What an episode may use."""

    max_turns: int
    context_length: int
    """Tokens the model can have in view."""
    timeout_seconds: float
    """From reset to end, waiting included."""
    turn_timeout_seconds: float | None = None
    """One action and the environment's answer to it, waiting included; None: as long as the episode may take."""

    @property
    def close_seconds(self) -> float:
        """Deadline for closing the environment at the end of the episode."""
        return min(self.timeout_seconds, CLOSE_SECONDS) or CLOSE_SECONDS


@dataclass(frozen=True, slots=True)
class Fork:
    """Point at which an episode forks from another."""

    turns: tuple[Turn, ...]
    """Shared turns: the same objects in both."""
    world: int
    """The seed of the other's environment."""
    splice: Splice | None = None
    """Tokens at the start of its first new action."""
    snapshot: Any = None
    """Snapshot of the environment after those turns; None: the turns are replayed."""


@dataclass(slots=True)
class EpisodeHooks:
    """Hooks of a method for one episode."""

    occasion: EpisodeKey
    context_transforms: tuple[ContextTransform, ...] = ()
    stops: tuple[tuple[str, Stop], ...] = ()
    """By name."""
    rewrites: tuple[Rewrite, ...] = ()
    overflow: Overflow = "drop"
    siblings: Siblings = field(default_factory=Siblings)
    """Kept up to date by the episode."""
    costs: Costs = field(default_factory=Costs)
    """Costs of the episode, including failed attempts."""
    on_turn: Callable[[Turn], None] = lambda turn: None
    """Called with each turn after which the episode continues."""
    restarted: Callable[[], None] = lambda: None
    """Called if the episode is played again: earlier turns do not count."""
    snapshots: dict[int, Any] | None = None
    """Number of turns → snapshot of the environment after them; None: no snapshots are taken."""
