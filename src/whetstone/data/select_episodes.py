"""Filters of offline episodes: minimum reward, top k per task, length, well-formedness, duplicates.

Note:
    If no episode passes the filters, an error names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from whetstone.trajectory import Group, Trajectory

_LOOPED = 3
"""Number of identical turns in a row that count as a loop."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Filters of offline episodes; by default all episodes with a reward pass."""

    min_reward: float | None = None
    """Minimum reward of an episode."""
    best: int | None = None
    """Maximum number of episodes per task, the highest rewards first."""
    max_tokens: int | None = None
    """Maximum number of sampled tokens of an episode."""
    clean: bool = False
    """Whether to keep only episodes that ended normally, with valid and successful tool calls and without loops."""
    distinct: bool = False
    """Whether to keep only one of several episodes of a task with identical messages and calls."""

    def select_groups(self, groups: Sequence[Group]) -> list[Group]:
        """Return the groups with only the episodes that pass the filters; groups without one are dropped."""
        taken = (replace(group, trajectories=self._filter(group)) for group in groups)
        return [group for group in taken if group.trajectories]

    def __str__(self) -> str:
        """Describe the filters for the error that no episode passes them; empty without such filters."""
        filters = [f"a reward of {self.min_reward:g} or more"] if self.min_reward is not None else []
        filters += [f"{self.max_tokens} tokens or fewer"] if self.max_tokens is not None else []
        filters += ["well-formed turns (well_formed_only)"] if self.clean else []
        return " and ".join(filters)

    def _filter(self, group: Group) -> tuple[Trajectory, ...]:
        episodes = [episode for episode in group.trajectories if self._passes(episode)]
        if self.distinct:
            episodes = list({format_turns(episode): episode for episode in reversed(episodes)}.values())[::-1]
        if self.best is not None:
            episodes = sorted(episodes, key=get_reward, reverse=True)[: self.best]
        return tuple(episodes)

    def _passes(self, episode: Trajectory) -> bool:
        if episode.score is None or episode.score.invalid or episode.greedy:
            return False
        if self.min_reward is not None and get_reward(episode) < self.min_reward:
            return False
        if self.max_tokens is not None and episode.action_tokens > self.max_tokens:
            return False
        return not self.clean or is_well_formed(episode)


def get_reward(episode: Trajectory) -> float:
    """Return the outcome reward of an episode that has a score."""
    assert episode.score is not None
    return episode.score.value


def is_imitated(episode: Trajectory) -> bool:
    """Return whether an episode can be imitated: the task was solved, or the log has no outcome."""
    return episode.solved or (episode.score is not None and episode.score.success is None)


def is_well_formed(episode: Trajectory) -> bool:
    """Return whether an episode ended normally, with valid and successful tool calls and without loops."""
    if episode.ended.cut_short or any(turn.message.malformed for turn in episode.turns):
        return False
    if any(call.outcome != "ok" for call in episode.calls):
        return False
    return not _loops(format_turns(episode))


def format_turns(episode: Trajectory) -> tuple[object, ...]:
    """Return (text, tool calls) of each turn, a key by which duplicate episodes and loops are found."""
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
