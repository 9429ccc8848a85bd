"""Episodes of a simulated run, and the workers that execute their calls.

Note:
    Events that were scheduled for an episode before it restarted remain in the queue. They carry the epoch that they
    belong to.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["engine", "tools", "tool_workers", "rewards", "reward_workers", "places", "failures"]


@dataclass(slots=True)
class SimulatedEpisode:
    """One episode with its sampled lengths and latencies."""

    number: int
    group: int
    turns: int
    prompt: float
    sampled_tokens: Any  # [turns] tokens sampled
    observation_tokens: Any  # [turns] tokens of observations
    tool_seconds: Any  # [turns]
    reset_seconds: float
    reward_seconds: float
    state: State = "places"
    turn: int = 0
    context: float = 0.0
    versions: float = 0.0
    """Sum of tokens times the version that sampled them."""
    replica: int = -1
    keys: int = -1
    """State of its replica's KV cache that contains its prefix."""
    node: int = 0
    epoch: int = 0
    """Incremented when it restarts, which voids scheduled events."""


@dataclass(slots=True)
class Workers:
    """A number of workers, or unlimited, with a queue."""

    count: int | None
    busy: int = 0
    line: deque[tuple[SimulatedEpisode, int]] = field(default_factory=deque)

    def take(self, episode: SimulatedEpisode) -> bool:
        """Assign a free worker to the episode and return True, or queue the episode."""
        if self.count is not None and self.busy >= self.count:
            self.line.append((episode, episode.epoch))
            return False
        self.busy += 1
        return True

    def give_back(self) -> SimulatedEpisode | None:
        """Free a worker and return the next queued episode, which is assigned to it."""
        self.busy -= 1
        while self.line:
            episode, epoch = self.line.popleft()
            if episode.epoch == epoch:
                self.busy += 1
                return episode
        return None
