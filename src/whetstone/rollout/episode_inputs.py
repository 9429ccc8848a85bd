"""Inputs of an episode: its limits, the turns it shares with another, and what a method does around it."""

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
        """Deadline for closing the environment behind the end of the episode."""
        return min(self.timeout_seconds, CLOSE_SECONDS) or CLOSE_SECONDS


@dataclass(frozen=True, slots=True)
class Fork:
    """Where an episode parts from another."""

    turns: tuple[Turn, ...]
    """What they share: the same objects in both."""
    world: int
    """The seed of the other's environment."""
    splice: Splice | None = None
    """What its first own action begins with."""
    snapshot: Any = None
    """The environment behind those turns, where it can say; None: it is led there."""


@dataclass(slots=True)
class EpisodeHooks:
    """What a method does around one episode."""

    occasion: EpisodeKey
    context_transforms: tuple[ContextTransform, ...] = ()
    stops: tuple[tuple[str, Stop], ...] = ()
    """By name."""
    rewrites: tuple[Rewrite, ...] = ()
    overflow: Overflow = "drop"
    siblings: Siblings = field(default_factory=Siblings)
    """Kept up to date by the episode."""
    costs: Costs = field(default_factory=Costs)
    """What the episode came to cost, attempts that failed among it."""
    heard: Callable[[Turn], None] = lambda turn: None
    """Told of each turn behind which the episode goes on."""
    restarted: Callable[[], None] = lambda: None
    """Told where it is played again: those turns do not count."""
    snapshots: dict[int, Any] | None = None
    """Turns → the environment behind so many, filled where it can say; None: nobody asks."""
