"""A few hopeless, very long episodes take most of the time. They are given up.

Easy to get wrong: an episode that was given up is a failure and stays one in the group's statistics; and slow successes
are lost with it, so the share that was stopped is worth watching (`flag/stragglers`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from whetstone.plugins import OptionError
from whetstone.rollout.protocol import EpisodeState, Siblings


@dataclass(frozen=True, slots=True, kw_only=True)
class Lagging:
    """Ends an episode that is far longer than it should be, or stands still (ActiveVLN).

    (a) longer than `times` the expert's, or the median of the group's successes; (b) most of the group is over, and
    this one is longer than `times_longest` the longest of them; (c) the same answer `standstill` times in a row.

    Source: ActiveVLN 2025, arXiv:2509.12618; the rule is ours, its text was not readable in detail.
    """

    times: float = 2.0
    """The expert's turns, or those of the usual success, for (a)."""
    finished_fraction: float = 0.75
    """Fraction of the group that must be finished for (b)."""
    times_longest: float = 1.5
    """The longest of those that are over, for (b)."""
    standstill: int = 5
    """Equal answers in a row, for (c)."""

    def __post_init__(self) -> None:
        if not 0 < self.finished_fraction <= 1:
            raise OptionError("finished_fraction", f"above 0 and at most 1, got {self.finished_fraction:g}")
        if self.standstill < 2:
            raise OptionError("standstill", f"two or more, got {self.standstill}")

    @property
    def by_timing(self) -> bool:
        """It reads who of the group is over."""
        return True

    def __call__(self, so_far: EpisodeState, siblings: Siblings, /) -> bool:
        """See `Stop`."""
        turns, ended = len(so_far.turns), siblings.ended
        expert = so_far.occasion.task.private.get("expert_turns")
        solved = [length for length, success in ended if success]
        usual = float(expert) if expert is not None else float(median(solved)) if solved else math.inf
        if turns > self.times * usual:
            return True
        enough = max(2.0, self.finished_fraction * so_far.occasion.group_size)
        if len(ended) >= enough and turns > self.times_longest * max(length for length, _ in ended):
            return True
        answers = [[message.key for message in turn.observation] for turn in so_far.turns[-self.standstill :]]
        return len(answers) == self.standstill and all(answer == answers[0] for answer in answers)
