"""Own successes are learned from again, in an update of their own, as long as they are better than what is usual now.

    advantages > 0 → stored with their log-probs → enough of them above the median → an update on those that still are

Easy to get wrong: what was good once is usual later. The baseline is the median of all groups' rewards so far, so old,
easy successes fall below it and vanish.
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
from whetstone.rollout.replay.buffer import Buffer, Stored, as_replayed
from whetstone.rollout.task_keys import own
from whetstone.trajectory import Group, OffPolicy, Score, Task


def recalibrated(rewards: Sequence[float], usual: float) -> list[float]:
    """A' = R − P50 of the history of group means; below 0 it is not learned from.

    Source: SPEAR 2025, arXiv:2509.22601, and its code.
    """
    return [reward - usual for reward in rewards]


def ascent(step: int, *, steps: int = 200) -> float:
    """What the second pass counts for: (1 − cos(π g / T)) / 2 up to T, then 1.

    Source: SPEAR 2025, arXiv:2509.22601, and its code.
    """
    return 1.0 if step >= steps else (1 - math.cos(math.pi * step / steps)) / 2


class SelfImitation:
    """A second update on stored successes when enough of them are better than usual (SPEAR).

    With weight 0 it is as if it was not there. Covariance clipping is the advantage transform `clip_cov`; the reward
    for using tools, falling over the steps, is a reward's business.

    Source: SPEAR 2025, arXiv:2509.22601, and its code (`ray_trainer_hybrid.py`).

    Args:
        size: Stored trajectories a second pass takes at most.
        trigger: How many of them, as a multiple of `size`, must be above the baseline.
        max_age_updates: Maximum age of a stored trajectory, in updates.
        history: Group means the baseline is the median of.
        ascent_steps: Updates until it counts in full.
        weight: What it then counts for.
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
            raise OptionError("size", f"one trajectory and one update or more, got {size} and {max_age_updates}")
        self.size, self.trigger, self.max_age_updates = size, trigger, max_age_updates
        self.ascent_steps, self.weight = ascent_steps, weight
        self.buffer = Buffer(of_each=4 * size, capacity=4 * size)
        self.baselines: deque[float] = deque(maxlen=history)
        self.passes = 0
        self._used = False

    def __call__(self, group: Group, draw: Random, /) -> Group:
        """Groups are as they are."""
        return group

    def again(self, update: int, draw: Random) -> list[Group]:
        """What a second pass learns from, each with its advantage as a part of its score; nothing where it is not due.

        Args:
            update: Its number, from 0.
        """
        self._used = False
        if not self.baselines or self.weight == 0:
            return []
        usual = median(self.baselines)
        stored = [row.trajectory for row in self.buffer.of("all", since=update - self.max_age_updates + 1)]
        better = [t for t in stored if t.score is not None and t.score.value > usual]
        if len(better) <= self.trigger * self.size:
            return []
        kept = [t for t in stored if t.score is not None and t.score.value - usual >= 0]
        some = draw.sample(kept, min(self.size, 2 ** int(math.log2(len(kept)))))
        counts = self.weight * ascent(update, steps=self.ascent_steps)
        self._used = True
        groups = []
        for k, trajectory in enumerate(some):
            assert trajectory.score is not None
            (advantage,) = recalibrated([trajectory.score.value], usual)
            score = Score(trajectory.score.value, {"advantage": counts * advantage})
            replayed = as_replayed(replace(trajectory, score=score), f"again-{update}-{k}/", OffPolicy.STORED)
            groups.append(Group(Task(trajectory.task_id, ""), (replayed,), k))
        return groups

    def observe(self, heard: StepOutcome, /) -> None:
        """See `Stateful`."""
        if self._used:
            self.buffer.load_state([])
            self.passes += 1
        self._used = False
        for group in heard.groups:
            mine = own(group)
            rewards = [t.score.value for t in mine if t.score is not None]
            if rewards:
                self.baselines.append(fmean(rewards))
            usual = fmean(rewards) if rewards else 0.0
            for trajectory in mine:
                good = trajectory.score is not None and trajectory.score.value > usual
                if good and heard.advantages.get(trajectory.id, 0.0) > 0:
                    self.buffer.add("all", Stored(trajectory, heard.step))

    def state(self) -> dict[str, Any]:
        """See `Stateful`."""
        return {"stored": self.buffer.state(), "baselines": list(self.baselines), "passes": self.passes}

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """See `Stateful`."""
        self.buffer.load_state(state["stored"])
        self.baselines = deque(state["baselines"], maxlen=self.baselines.maxlen)
        self.passes = state["passes"]

    def forget_versions(self) -> None:
        """See `KeepsDrawn`."""
        self.buffer.forget_versions()

    def metrics(self) -> dict[str, float]:
        """How many are stored, and how often they were learned from."""
        return {"stored": float(len(self.buffer)), "passes": float(self.passes)}
