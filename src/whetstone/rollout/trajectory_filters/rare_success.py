"""Trajectory filter that keeps rare successes: those of tasks that mostly fail.

    score = reward − success rate of such tasks → the best tenth is trained

Note:
    If everything failed, failures on hard tasks score best. Only successes may pass.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from whetstone.plugins import OptionError
from whetstone.rollout.protocol import StepOutcome
from whetstone.rollout.task_keys import on_policy_trajectories, task_key
from whetstone.trajectory import Group, RemovalScope


def rare_success_indices(rewards: Sequence[float], values: Sequence[float], *, quantile: float = 0.9) -> list[int]:
    """Return the indices of successes whose reward most exceeds the success rate of their kind of task.

    Selected are trajectories with R > 0 and R − V at or above the quantile of the batch.

    Args:
        rewards: [N] reward R per trajectory.
        values: [N] success rate V of the kind of task of each trajectory.
        quantile: Quantile of R − V, from 0 to 1.

    Source: DigiRL 2024, arXiv:2406.11896, its code (`trainer.py`); that R > 0 is an addition.
    """
    if not rewards:
        return []
    scores = np.asarray(rewards, dtype=float) - np.clip(np.asarray(values, dtype=float), 1e-4, 1 - 1e-4)
    bar = float(np.quantile(scores, quantile)) - 1e-12
    return [i for i, score in enumerate(scores) if score >= bar and rewards[i] > 0]


class RareSuccesses:
    """Keeps only the rarest successes of a batch (DigiRL's instruction-level filter).

    At quantile 0 every success is kept. Success rates are counted rather than predicted by a classifier.

    Source: DigiRL 2024, arXiv:2406.11896

    Args:
        quantile: Quantile of the batch's scores, from 0 to below 1.
        by: Key that groups tasks: `task`, or the name of a tag.
        window: Number of most recent episodes per key that are counted.
        capacity: Maximum number of stored keys; the least recently used one is removed first.
    """

    def __init__(self, *, quantile: float = 0.9, by: str = "kind", window: int = 256, capacity: int = 10_000) -> None:
        if not 0 <= quantile < 1:
            raise OptionError("quantile", f"must be at least 0 and below 1, got {quantile:g}")
        self.quantile, self.by, self.window, self.capacity = quantile, by, window, capacity
        self._known: OrderedDict[str, deque[float]] = OrderedDict()

    def __call__(self, groups: Sequence[Group], draw: Random, /) -> Sequence[Group]:
        """Mark the trajectories of a step that are not trained; see `TrajectoryFilter.__call__`."""
        counted = [(group, t) for group in groups for t in group.counted]
        values = []
        for group, _ in counted:
            known = self._known.get(task_key(group.task, self.by), ())
            values.append(sum(known) / len(known) if known else 0.5)
        rewards = [t.score.value for _, t in counted if t.score is not None]
        stays = {counted[i][1].id for i in rare_success_indices(rewards, values, quantile=self.quantile)}
        removed = {t.id for _, t in counted} - stays
        return [
            replace(
                group,
                trajectories=tuple(
                    replace(t, removal=RemovalScope.LOSS_ONLY) if t.id in removed else t for t in group.trajectories
                ),
            )
            for group in groups
        ]

    def observe(self, outcome: StepOutcome, /) -> None:
        """Count the successes of a step per key."""
        for group in outcome.groups:
            key = task_key(group.task, self.by)
            self._known.setdefault(key, deque(maxlen=self.window)).extend(
                float(t.solved) for t in on_policy_trajectories(group)
            )
            self._known.move_to_end(key)
        while len(self._known) > self.capacity:
            self._known.popitem(last=False)

    def state(self) -> dict[str, Any]:
        """Return the counted successes for a checkpoint."""
        return {"known": [[key, list(known)] for key, known in self._known.items()]}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Restore the counted successes of a checkpoint."""
        self._known = OrderedDict((key, deque(known, maxlen=self.window)) for key, known in state["known"])
