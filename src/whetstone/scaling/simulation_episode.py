"""What is an episode in a simulated run, and who does its calls?

Easy to get wrong: an episode that begins again leaves events behind that were foreseen of its first life. They carry
the life they are of.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["engine", "tools", "tool_workers", "rewards", "reward_workers", "places", "failures"]


@dataclass(slots=True)
class SimulatedEpisode:
    """One episode, with everything that was drawn for it."""

    number: int
    group: int
    turns: int
    prompt: float
    said: Any  # [turns] tokens sampled
    answers: Any  # [turns] tokens of observations
    tool_seconds: Any  # [turns]
    reset_seconds: float
    reward_seconds: float
    state: State = "places"
    turn: int = 0
    context: float = 0.0
    versions: float = 0.0
    """Tokens times the version that drew them."""
    replica: int = -1
    keys: int = -1
    """Of which state of its replica it has keys there."""
    node: int = 0
    epoch: int = 0
    """Raised when it begins again: what was foreseen is void."""


@dataclass(slots=True)
class Workers:
    """A number of workers, or any; who finds none waits in line."""

    count: int | None
    busy: int = 0
    line: deque[tuple[SimulatedEpisode, int]] = field(default_factory=deque)

    def take(self, episode: SimulatedEpisode) -> bool:
        """Whether one is free, who is the episode's now; else it is in line."""
        if self.count is not None and self.busy >= self.count:
            self.line.append((episode, episode.epoch))
            return False
        self.busy += 1
        return True

    def give_back(self) -> SimulatedEpisode | None:
        """The next in line, who has the worker now."""
        self.busy -= 1
        while self.line:
            episode, epoch = self.line.popleft()
            if episode.epoch == epoch:
                self.busy += 1
                return episode
        return None
