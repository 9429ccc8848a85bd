"""Self-imitation: stored successes of the policy are trained in a second update while they exceed the current baseline.

    advantages > 0 → stored with their log-probs → enough of them above the median → an update on those that still are

Note:
    The baseline is the median of all groups' rewards so far, so old, easy successes fall below it and are dropped.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from statistics import fmean, median
from typing import Any

from whetstone.plugins import OptionError
from whetstone.rollout.protocol import StepOutcome
from whetstone.rollout.replay.buffer import Buffer, StoredTrajectory, mark_replayed
from whetstone.rollout.task_keys import on_policy_trajectories
from whetstone.trajectory import Group, OffPolicy, Score, Task


def center_on_baseline(rewards: Sequence[float], usual: float) -> list[float]:
    """Compute the advantages A' = R − P50 of stored trajectories, with the median P50 of past group means.

    Source: SPEAR 2025, arXiv:2509.22601, and its code.
    """
    return [reward - usual for reward in rewards]


def second_pass_weight(step: int, *, steps: int = 200) -> float:
    """Return the weight of the second pass at update g: (1 − cos(π g / T)) / 2 up to T = `steps`, then 1.

    Source: SPEAR 2025, arXiv:2509.22601, and its code.
    """
    return 1.0 if step >= steps else (1 - math.cos(math.pi * step / steps)) / 2


class SelfImitation:
    """Trains a second update on stored successes when enough of them exceed the baseline (SPEAR).

    With weight 0 it has no effect. Covariance clipping is the advantage transform `clip_cov`; a decaying reward for
    tool use is a separate reward.

    Source: SPEAR 2025, arXiv:2509.22601, and its code (`ray_trainer_hybrid.py`).

    Args:
        size: Maximum number of stored trajectories of a second pass.
        trigger: Number of trajectories that must be above the baseline, as a multiple of `size`.
        max_age_updates: Maximum age of a stored trajectory, in updates.
        history: Number of group means in the median of the baseline.
        ascent_steps: Number of updates until the full weight.
        weight: Final weight of the second pass.
    """

    off_policy = OffPolicy.STORED

    def __init__(
        self,
        *,
        size: int = 64,
        trigger: float = 1.5,
        max_age_updates: int = 5,
        history: int = 10_240,
        ascent_steps: int = 200,
        weight: float = 1.0,
    ) -> None:
        if size < 1 or max_age_updates < 1:
            raise OptionError("size", f"size and max_age_updates must be at least 1, got {size} and {max_age_updates}")
        self.size, self.trigger, self.max_age_updates = size, trigger, max_age_updates
        self.ascent_steps, self.weight = ascent_steps, weight
        self.buffer = Buffer(max_per_key=4 * size, capacity=4 * size)
        self.baselines: deque[float] = deque(maxlen=history)
        self.passes = 0
        self._used = False

    def __call__(self, group: Group, draw: Random, /) -> Group:
        """Return the group unchanged; stored trajectories are trained in `second_pass_groups`."""
        return group

    def second_pass_groups(self, update: int, draw: Random) -> list[Group]:
        """Return the groups of a second pass.

        The result is empty if too few stored trajectories exceed the baseline. Each group has one trajectory, whose
        score component `advantage` is its weighted advantage.

        Args:
            update: Index of the update that was just made, from 0.
        """
        self._used = False
        if not self.baselines or self.weight == 0:
            return []
        usual = median(self.baselines)
        stored = [
            row.trajectory for row in self.buffer.get_trajectories("all", since=update - self.max_age_updates + 1)
        ]
        better = [t for t in stored if t.score is not None and t.score.value > usual]
        if len(better) <= self.trigger * self.size:
            return []
        candidates = [t for t in stored if t.score is not None and t.score.value - usual >= 0]
        some = draw.sample(candidates, min(self.size, 2 ** int(math.log2(len(candidates)))))
        counts = self.weight * second_pass_weight(update, steps=self.ascent_steps)
        self._used = True
        groups = []
        for k, trajectory in enumerate(some):
            assert trajectory.score is not None
            (advantage,) = center_on_baseline([trajectory.score.value], usual)
            score = Score(trajectory.score.value, {"advantage": counts * advantage})
            replayed = mark_replayed(replace(trajectory, score=score), f"again-{update}-{k}/", OffPolicy.STORED)
            groups.append(Group(Task(trajectory.task_id, ""), (replayed,), k))
        return groups

    def observe(self, outcome: StepOutcome, /) -> None:
        """Store the trajectories of a step with positive advantages, and update the baseline.

        After a second pass the buffer is emptied first.
        """
        if self._used:
            self.buffer.load_state([])
            self.passes += 1
        self._used = False
        for group in outcome.groups:
            trajectories = on_policy_trajectories(group)
            rewards = [t.score.value for t in trajectories if t.score is not None]
            if rewards:
                self.baselines.append(fmean(rewards))
            usual = fmean(rewards) if rewards else 0.0
            for trajectory in trajectories:
                good = trajectory.score is not None and trajectory.score.value > usual
                if good and outcome.advantages.get(trajectory.id, 0.0) > 0:
                    self.buffer.add("all", StoredTrajectory(trajectory, outcome.step))

    def state(self) -> dict[str, Any]:
        """Return buffer and baseline for a checkpoint."""
        return {"stored": self.buffer.state(), "baselines": list(self.baselines), "passes": self.passes}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Restore buffer and baseline of a checkpoint."""
        self.buffer.load_state(state["stored"])
        self.baselines = deque(state["baselines"], maxlen=self.baselines.maxlen)
        self.passes = state["passes"]

    def forget_versions(self) -> None:
        """Mark the stored trajectories as older than every version of this run."""
        self.buffer.forget_versions()

    def metrics(self) -> dict[str, float]:
        """Return `stored`, the number of stored trajectories, and `passes`, the number of second passes."""
        return {"stored": float(len(self.buffer)), "passes": float(self.passes)}
