"""What happens in a step of a stage on stored data? Groups from a file, credit, objective, update; nothing is sampled.

Easy to get wrong: stored tokens were drawn by other weights, in another run. They are older than every version of this
one, so that nobody takes the difference for a fault of the sampler.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from whetstone.causes import Beginning, cause_of, counted_causes
from whetstone.compute_thread import run_in_compute_thread
from whetstone.contracts import fulfils
from whetstone.data.stored_episodes import as_stored
from whetstone.inference import Engine, publish
from whetstone.learning.protocol import Learner, LooksAhead
from whetstone.learning.spec import UpdateBatch
from whetstone.training.stage import WithoutSampling
from whetstone.training.train_step import count_provenances
from whetstone.trajectory import Group


class DrawnGroups(Protocol):
    """An endless row of groups."""

    def group(self, draw: int) -> Group:
        """The n-th."""
        ...


@dataclass(frozen=True, slots=True)
class Looks:
    """When is looked at groups nobody learns from?"""

    groups: Sequence[Group] = ()
    every: int = 1
    last: int = 0
    """The last step of the stage, which has a look, as the first has."""

    def due(self, step: int) -> bool:
        """Whether step `step`, from 1, begins with one."""
        return bool(self.groups) and (step == 1 or step == self.last or step % self.every == 0)


_NO_LOOKS = Looks()
_LOOKED_AT = {"loss/total": "loss", "value/loss": "value_loss", "policy/staleness_kl": "kl"}
"""What is told of groups nobody learns from, by the metric that says the same of those that are learned from."""


class Stored(WithoutSampling):
    """The stage, one update a call.

    Args:
        count: Groups a step.
        done: Steps made.
        looks: At groups that are held out.
    """

    def __init__(
        self,
        groups: DrawnGroups,
        learner: Learner,
        engine: Engine,
        *,
        count: int,
        done: int = 0,
        looks: Looks = _NO_LOOKS,
    ) -> None:
        super().__init__(learner, engine, Beginning("rows", "can be learned from"), done=done)
        self.groups, self.count, self.looks = groups, count, looks

    async def step(self, budget_share: float = 0.0) -> dict[str, float]:
        """The next update, as metrics. What cannot be learned from is left out and counted.

        Raises:
            NothingScoredError: None of the first few dozen could be.
        """
        began = time.perf_counter()
        drawn = [self.groups.group(self.done * self.count + place) for place in range(self.count)]
        for group in drawn:
            failed = next((t for t in group.trajectories if t.score is None), None)
            self.beginning.see(None if failed is None else cause_of(failed))
        left_out = [t for group in drawn for t in group.trajectories if t.score is None and t.error]
        self.causes = counted_causes(map(cause_of, left_out))
        groups = [
            as_stored(group, f"stored-{self.done}-{place}/", number=place)
            for place, group in enumerate(drawn)
            if any(t.score is not None for t in group.trajectories)
        ]
        self.updating_since = time.perf_counter()
        metrics = await run_in_compute_thread(self._look)
        if groups:
            batch = UpdateBatch(tuple(groups), version=self.engine.version + 1)
            metrics |= (await run_in_compute_thread(self.learner.update, batch)).metrics
        self.updating_since = None
        self.learner.end_step()
        self.done += 1
        await publish(self.learner.weights(), self.engine, self.engine.version + 1)
        now = time.perf_counter()
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        tokens = sum(len(segment) for trajectory in trajectories for segment in trajectory.segments())
        return (
            metrics
            | count_provenances(trajectories)
            | {
                "data/skipped_fraction": 1 - len(groups) / len(drawn),
                "data/reward": fmean(_rewards(groups)) if groups else math.nan,
                "time/update": now - began,
                "throughput/tokens_per_second": tokens / (now - began),
            }
        )

    def _look(self) -> dict[str, float]:
        """What the weights in front of this update say of groups that are held out."""
        if not (self.looks.due(self.done + 1) and fulfils(self.learner, LooksAhead)):
            return {}
        shown = self.looks.groups[: self.count]
        stored = [as_stored(group, f"held-out-{k}/", number=k) for k, group in enumerate(shown)]
        found = self.learner.look(UpdateBatch(tuple(stored), version=self.engine.version + 1))
        return {f"held_out/{name}": found[metric] for metric, name in _LOOKED_AT.items() if metric in found}


def _rewards(groups: Sequence[Group]) -> list[float]:
    return [reward for group in groups for reward in group.rewards]
