"""Which stored episodes are worth learning from? The best, the short, the clean, and none that is there twice.

Easy to get wrong: what is left out is left out for a reason somebody can read, and an empty rest is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from whetstone.trajectory import Group, Trajectory

_LOOPED = 3
"""So many turns in a row that say and call the same are a loop."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which episodes of a store are taken; as it stands, all that have a reward."""

    min_reward: float | None = None
    """Only episodes with at least this reward."""
    best: int | None = None
    """At most so many of a task, the best first."""
    max_tokens: int | None = None
    """Only episodes whose policy wrote at most so many tokens."""
    clean: bool = False
    """Only episodes that came to an end of their own, every call well-formed and answered, nothing said in a loop."""
    distinct: bool = False
    """Of episodes of a task that said and called the same, one alone."""

    def of(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with what is taken of each, in their order; a group of which nothing is taken is left out."""
        taken = (replace(group, trajectories=self._taken(group)) for group in groups)
        return [group for group in taken if group.trajectories]

    def __str__(self) -> str:
        """What is asked for, as it is told where nothing has it."""
        asked = [f"a reward of {self.min_reward:g} or more"] if self.min_reward is not None else []
        asked += [f"{self.max_tokens} tokens or fewer"] if self.max_tokens is not None else []
        asked += ["no fault (clean)"] if self.clean else []
        return " and ".join(asked)

    def _taken(self, group: Group) -> tuple[Trajectory, ...]:
        kept = [episode for episode in group.trajectories if self._suits(episode)]
        if self.distinct:
            kept = list({said(episode): episode for episode in reversed(kept)}.values())[::-1]
        if self.best is not None:
            kept = sorted(kept, key=reward_of, reverse=True)[: self.best]
        return tuple(kept)

    def _suits(self, episode: Trajectory) -> bool:
        if episode.score is None or episode.score.invalid or episode.greedy:
            return False
        if self.min_reward is not None and reward_of(episode) < self.min_reward:
            return False
        if self.max_tokens is not None and episode.action_tokens > self.max_tokens:
            return False
        return not self.clean or is_clean(episode)


def reward_of(episode: Trajectory) -> float:
    """The reward of an episode that has one."""
    assert episode.score is not None
    return episode.score.value


def is_imitated(episode: Trajectory) -> bool:
    """Return whether an episode is a demonstration: it solved its task, or its log has no success."""
    return episode.solved or (episode.score is not None and episode.score.success is None)


def is_clean(episode: Trajectory) -> bool:
    """Whether it ended by itself, every call could be read and was answered well, and nothing was said in a loop."""
    if episode.ended.cut_short or any(turn.message.malformed for turn in episode.turns):
        return False
    if any(call.outcome != "ok" for call in episode.calls):
        return False
    return not _loops(said(episode))


def said(episode: Trajectory) -> tuple[object, ...]:
    """What was said and called, turn by turn."""
    return tuple(
        (turn.message.text.strip(), tuple((call.name, call.arguments) for call in turn.message.tool_calls))
        for turn in episode.turns
    )


def _loops(turns: Sequence[object]) -> bool:
    running = 1
    for before, now in pairwise(turns):
        running = running + 1 if before == now else 1
        if running == _LOOPED:
            return True
    return False
