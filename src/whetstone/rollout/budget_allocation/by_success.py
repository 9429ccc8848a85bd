"""Budget allocation by success: fewer and shorter episodes of tasks that are mostly solved.

Note:
    The limit of turns derives from the longest success, so a task that was solved once can be solved again.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

from whetstone.rollout.protocol import EpisodeKey, GroupBudget, StepOutcome
from whetstone.rollout.task_keys import on_policy_trajectories, task_key


class BySuccess:
    """Allocates smaller groups and fewer turns to tasks that are mostly solved (DART).

    If the success rate of a task exceeds `rate`, its group size is halved. The maximum number of turns is `slack` times
    the longest success. A task without recorded episodes has the full budget.

    Source: DART 2025, arXiv:2509.23866; the numbers are an addition.

    Args:
        group_size: Full number of trajectories per group.
        max_turns: Full number of turns per episode.
        by: Key of the success statistics: `task`, or the name of a tag.
        rate: Success rate from 0 to 1 above which the group size is halved.
        slack: Maximum number of turns, in multiples of the longest success.
        min_turns: Minimum number of turns.
        window: Number of most recent episodes per key that are counted.
        capacity: Maximum number of stored keys; the least recently used one is removed first.
    """

    def __init__(
        self,
        *,
        group_size: int,
        max_turns: int,
        by: str = "task",
        rate: float = 0.6,
        slack: float = 1.2,
        min_turns: int = 5,
        window: int = 64,
        capacity: int = 10_000,
    ) -> None:
        self.group_size, self.max_turns, self.by, self.rate = group_size, max_turns, by, rate
        self.slack, self.min_turns, self.window, self.capacity = slack, min_turns, window, capacity
        self._known: OrderedDict[str, deque[int]] = OrderedDict()
        """Key → turns of each success, 0 for a failure."""

    def __call__(self, episode_key: EpisodeKey, /) -> GroupBudget:
        """Return the budget of a group that starts now; see `Allocation.__call__`."""
        known = self._known.get(task_key(episode_key.task, self.by), ())
        if not known:
            return GroupBudget()
        solved = sum(turns > 0 for turns in known) / len(known)
        size = self.group_size if solved <= self.rate else max(2, self.group_size // 2)
        longest = max(known)
        if not longest:
            return GroupBudget(size)
        turns = max(self.min_turns, math.ceil(self.slack * longest - 1e-9))
        return GroupBudget(size, min(turns, self.max_turns))

    def observe(self, outcome: StepOutcome, /) -> None:
        """Store the number of turns of each success, and each failure, by the key of the task."""
        for group in outcome.groups:
            key = task_key(group.task, self.by)
            known = self._known.setdefault(key, deque(maxlen=self.window))
            known.extend(len(t.turns) if t.solved else 0 for t in on_policy_trajectories(group))
            self._known.move_to_end(key)
        while len(self._known) > self.capacity:
            self._known.popitem(last=False)

    def state(self) -> dict[str, Any]:
        """Return the stored results for a checkpoint."""
        return {"known": [[key, list(turns)] for key, turns in self._known.items()]}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Restore the stored results of a checkpoint."""
        self._known = OrderedDict((key, deque(turns, maxlen=self.window)) for key, turns in state["known"])
