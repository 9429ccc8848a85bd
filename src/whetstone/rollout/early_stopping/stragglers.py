"""Early stopping of stragglers: a few very long, hopeless episodes take most of the time.

Note:
    A stopped episode is a failure in the group's statistics. Slow successes are lost with it: monitor the fraction of
    stopped episodes (`flag/stragglers`), and measure the loss with `rollout.early_stopping_control_fraction`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from whetstone.plugins import OptionError
from whetstone.rollout.protocol import EpisodeState, Siblings


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerStop:
    """Ends an episode that is far longer than usual, or repeats the same observation (ActiveVLN).

    An episode ends if one of these holds:

    - (a) It has more than `times` as many turns as the expert, or as the median of the group's successes.
    - (b) `finished_fraction` of the group has ended, and it has more than `times_longest` as many turns as the longest
      of those.
    - (c) The last `standstill` observations are equal.

    Source: ActiveVLN 2025, arXiv:2509.12618; the rule is an addition, the paper's text was not readable in detail.
    """

    times: float = 2.0
    """Maximum number of turns, in multiples of the expert's turns or the median success's turns, for rule (a)."""
    finished_fraction: float = 0.75
    """Fraction of the group that must have ended, for rule (b)."""
    times_longest: float = 1.5
    """Maximum number of turns, in multiples of the longest finished episode's turns, for rule (b)."""
    standstill: int = 5
    """Number of consecutive equal observations, for rule (c)."""

    def __post_init__(self) -> None:
        if not 0 < self.finished_fraction <= 1:
            raise OptionError("finished_fraction", f"must be above 0 and at most 1, got {self.finished_fraction:g}")
        if self.standstill < 2:
            raise OptionError("standstill", f"must be at least 2, got {self.standstill}")

    @property
    def by_timing(self) -> bool:
        """Return True: the decision depends on which episodes of the group have ended."""
        return True

    def __call__(self, state: EpisodeState, siblings: Siblings, /) -> bool:
        """Return whether to end the episode after its last turn; see `Stop.__call__`."""
        turns, ended = len(state.turns), siblings.ended
        expert = state.episode_key.task.private.get("expert_turns")
        solved = [length for length, success in ended if success]
        usual = float(expert) if expert is not None else float(median(solved)) if solved else math.inf
        if turns > self.times * usual:
            return True
        enough = max(2.0, self.finished_fraction * state.episode_key.group_size)
        if len(ended) >= enough and turns > self.times_longest * max(length for length, _ in ended):
            return True
        answers = [[message.key for message in turn.observation] for turn in state.turns[-self.standstill :]]
        return len(answers) == self.standstill and all(answer == answers[0] for answer in answers)
