"""Inputs of an episode: its limits, the turns shared with another episode, and the hooks of a method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from whetstone.rollout.context_builder import Overflow
from whetstone.rollout.protocol import ContextTransform, EpisodeKey, Rewrite, Siblings, Splice, Stop
from whetstone.trajectory import Costs, Turn
from whetstone.waiting import CLOSE_SECONDS


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Limits of an episode."""

    max_turns: int
    context_length: int
    """Maximum number of tokens in the model's context."""
    timeout_seconds: float
    """Deadline in seconds from reset to end, waiting included."""
    turn_timeout_seconds: float | None = None
    """Deadline in seconds of one action and its observation, waiting included; None: only that of the episode."""

    @property
    def close_seconds(self) -> float:
        """Return the deadline for closing the environment at the end of the episode."""
        return min(self.timeout_seconds, CLOSE_SECONDS) or CLOSE_SECONDS


@dataclass(frozen=True, slots=True)
class Fork:
    """Point at which an episode forks from another."""

    turns: tuple[Turn, ...]
    """Shared turns: the same objects in both."""
    environment_seed: int
    """Seed of the other episode's environment."""
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
    """Stops by name."""
    rewrites: tuple[Rewrite, ...] = ()
    overflow: Overflow = "drop"
    siblings: Siblings = field(default_factory=Siblings)
    """Progress of the group's episodes; each episode updates it."""
    costs: Costs = field(default_factory=Costs)
    """Costs of the episode, including failed attempts."""
    on_turn: Callable[[Turn], None] = lambda turn: None
    """Called with each turn after which the episode continues."""
    restarted: Callable[[], None] = lambda: None
    """Called if the episode is played again: earlier turns do not count."""
    snapshots: dict[int, Any] | None = None
    """Number of turns → snapshot of the environment after them; None: no snapshots are taken."""
