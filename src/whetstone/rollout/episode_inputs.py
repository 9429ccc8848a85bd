"""Inputs of an episode: limits, the fork point at which it starts, and the hooks of a recipe's rollout components."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from whetstone.rollout.context_builder import Overflow
from whetstone.rollout.protocol import ActionMask, ContextTransform, EpisodeKey, Rewrite, Siblings, Splice, Stop
from whetstone.trajectory import Costs, Turn
from whetstone.waiting import CLOSE_SECONDS


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """EpisodeLimits of the turns, context length and duration of an episode."""

    max_turns: int
    context_length: int
    """Maximum number of tokens in the model's context."""
    timeout_seconds: float
    """Deadline in seconds from reset to end, waiting included."""
    turn_timeout_seconds: float | None = None
    """Deadline in seconds of one action and its observation, waiting included; None: only the episode has a deadline.
    """

    @property
    def close_seconds(self) -> float:
        """Return the maximum number of seconds for closing the environment at the end of an episode."""
        return min(self.timeout_seconds, CLOSE_SECONDS) or CLOSE_SECONDS


@dataclass(frozen=True, slots=True)
class Fork:
    """Fork point: the turns that an episode shares with another one, and the environment state after them."""

    turns: tuple[Turn, ...]
    """Shared turns, the same objects in both episodes."""
    environment_seed: int
    """Seed of the environment of the other episode."""
    splice: Splice | None = None
    """Tokens with which the first new action starts; None: the policy samples all of it."""
    snapshot: Any = None
    """Snapshot of the environment after the shared turns; None: the turns are replayed in a new environment."""


@dataclass(slots=True)
class EpisodeHooks:
    """Rollout components and callbacks that apply to one episode. `GroupSampler` creates it; the runner calls it."""

    episode_key: EpisodeKey
    context_transforms: tuple[ContextTransform, ...] = ()
    stops: tuple[tuple[str, Stop], ...] = ()
    """Early-stopping components with their names, which become marks of stopped episodes."""
    stop_control_fraction: float = 0.0
    """Probability that the episode continues after a stop, with the mark `NAME_continued:TURNS`."""
    rewrites: tuple[Rewrite, ...] = ()
    action_mask: ActionMask | None = None
    """Restricts the policy to some actions in some turns; None: every action in all turns."""
    overflow: Overflow = "drop"
    siblings: Siblings = field(default_factory=Siblings)
    """Progress of all episodes of the group; the runner updates the entry of its episode."""
    costs: Costs = field(default_factory=Costs)
    """Costs of the episode so far, including failed attempts."""
    on_turn: Callable[[Turn], None] = lambda turn: None
    """Callback after each turn that does not end the episode."""
    restarted: Callable[[], None] = lambda: None
    """Callback before the episode is played again; its earlier turns are discarded."""
    snapshots: dict[int, Any] | None = None
    """Snapshots of the environment by the number of turns before them; None: no snapshots are taken."""
