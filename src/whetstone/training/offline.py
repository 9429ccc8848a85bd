"""Stages that train only on a source of stored groups, without sampling: `offline` and `preference`.

Note:
    Stored tokens were sampled with other weights. Their version is older than every version of the run, so the
    difference is not reported as a mismatch of the sampler.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from whetstone.capabilities import implements_protocol
from whetstone.compute_thread import run_in_compute_thread
from whetstone.data.offline_episodes import mark_offline
from whetstone.failure_causes import StartupFailureMonitor, count_causes, find_failure_cause
from whetstone.inference import Engine, sync_weights
from whetstone.learning.protocol import Learner, SupportsEvaluate
from whetstone.learning.spec import UpdateBatch
from whetstone.rollout.group_sources import GroupSource, MixedSource
from whetstone.training.group_mixer import GroupMixer
from whetstone.training.stage import WithoutSampling
from whetstone.training.train_step import count_provenances
from whetstone.trajectory import Group


@dataclass(frozen=True, slots=True)
class HeldOutSchedule:
    """Schedule of evaluations of the loss on held-out groups."""

    groups: Sequence[Group] = ()
    """Held-out groups; empty: no evaluations."""
    every: int = 1
    """Interval between two evaluations, in steps."""
    last: int = 0
    """Last step of the stage, which is also evaluated, as is the first one."""

    def is_due(self, step: int) -> bool:
        """Return whether a step, counted from 1, starts with an evaluation."""
        return bool(self.groups) and (step == 1 or step == self.last or step % self.every == 0)


_NO_LOOKS = HeldOutSchedule()
_LOOKED_AT = {"loss/total": "loss", "value/loss": "value_loss", "policy/staleness_kl": "kl"}
"""Metric of training groups → name of the same value on held-out groups."""


class OfflineTraining(WithoutSampling):
    """Stage that trains on stored groups without sampling: `offline` and `preference`.

    Created by `SingleRun`; each call of `step` makes one update.

    Args:
        source: Source of the groups.
        learner: Learner of the policy.
        engine: Engine that receives the weights after each update.
        count: Number of groups per step.
        done: Number of steps made before.
        looks: Schedule of evaluations of the loss on held-out groups.
    """

    def __init__(
        self,
        source: GroupSource,
        learner: Learner,
        engine: Engine,
        *,
        count: int,
        done: int = 0,
        looks: HeldOutSchedule = _NO_LOOKS,
    ) -> None:
        super().__init__(learner, engine, StartupFailureMonitor("rows", "can be trained on"), done=done)
        self.count, self.looks = count, looks
        self._mixer = GroupMixer({"stored": MixedSource(source, fraction=1.0)}, groups=count)

    async def step(self, budget_share: float = 0.0) -> dict[str, float]:
        """Make the next update and return its metrics.

        Groups that cannot be trained on are left out and counted.

        Args:
            budget_share: Not used: offline stages have no budget.

        Raises:
            NothingScoredError: If none of the first few dozen groups can be trained on.
        """
        began = time.perf_counter()
        drawn = (await self._mixer.take(self.done, {})).groups["stored"]
        for group in drawn:
            failed = next((t for t in group.trajectories if t.score is None), None)
            self.beginning.record_result(None if failed is None else find_failure_cause(failed))
        skipped = [t for group in drawn for t in group.trajectories if t.score is None and t.error]
        self.causes = count_causes(map(find_failure_cause, skipped))
        groups = [group for group in drawn if any(t.score is not None for t in group.trajectories)]
        self.updating_since = time.perf_counter()
        metrics = await run_in_compute_thread(self._look)
        if groups:
            batch = UpdateBatch(tuple(groups), version=self.engine.version + 1)
            metrics |= (await run_in_compute_thread(self.learner.update, batch)).metrics
        self.updating_since = None
        self.learner.end_step()
        self.done += 1
        await sync_weights(self.learner.weights(), self.engine, self.engine.version + 1)
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

    async def close(self) -> None:
        """Close the source of the groups."""
        await self._mixer.close()

    def _look(self) -> dict[str, float]:
        """Return the losses on held-out groups with the current weights, if an evaluation is due."""
        if not (self.looks.is_due(self.done + 1) and implements_protocol(self.learner, SupportsEvaluate)):
            return {}
        groups = self.looks.groups[: self.count]
        stored = [mark_offline(group, f"held-out-{k}/", number=k) for k, group in enumerate(groups)]
        losses = self.learner.evaluate_loss(UpdateBatch(tuple(stored), version=self.engine.version + 1))
        return {f"held_out/{name}": losses[metric] for metric, name in _LOOKED_AT.items() if metric in losses}


def _rewards(groups: Sequence[Group]) -> list[float]:
    return [reward for group in groups for reward in group.rewards]
