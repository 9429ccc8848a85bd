"""Reinforcement learning stage: synchronous, one step off-policy or asynchronous, with resume after an interruption.

    weights of version v to the engine → groups for update v, by the staleness bound → update → version v + 1

Sampling runs concurrently, up to `admit_ahead` updates ahead (`group_stream.py`). With 0 it starts after the weight
sync and ends before the update: synchronous.

A resumed run repeats the recorded updates, with the groups of each. If the results are a function of the recipe
(`deterministic`, or nothing ahead), sampling is repeated, too: recorded groups are loaded, and others are sampled with
the version that they would have had. Otherwise sampling continues after the last recorded update, with the groups that
were alive then.

Note:
    The engine must never see a partial update. If sampling continues during an update, the engine has a copy of the
    weights, and receives the new ones completely, between two of its steps.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whetstone.assembly.assembly import RunComponents
from whetstone.capabilities import implements_protocol
from whetstone.compute_thread import run_in_compute_thread
from whetstone.errors import PartialUpdateError, RunDirectoryError, WeightSyncError, WhetstoneError
from whetstone.failure_causes import count_failure_causes
from whetstone.inference import Engine, sync_weights
from whetstone.inference.protocol import SupportsSleep
from whetstone.learning.protocol import Learner, count_applied_steps
from whetstone.learning.spec import UpdateBatch
from whetstone.recipe import ReinforcementSettings
from whetstone.record.run_store import RunStore
from whetstone.rewards.judge_usage import judge_metrics
from whetstone.rollout import Collector, StepOutcome
from whetstone.training.supervised import (
    cost_metrics,
    describe_groups,
    sample_imitation,
    staleness_metrics,
    step_cost_metrics,
)
from whetstone.training.sync_check import check_outside_engine
from whetstone.training.train_step import train_step
from whetstone.training.update_groups import UpdateGroups
from whetstone.trajectory import Group
from whetstone.user_code import describe_exception

_ATTEMPTS = 3
"""Number of times that an update may crash the process before its groups are quarantined."""
_UPDATE = "its update"


class Reinforcement:
    """Reinforcement learning stage; created by `SingleRun`, each call of `step` makes one update.

    Args:
        assembly: Components of the run.
        learner: Learner of the policy.
        engine: Engine that samples from the policy.
        settings: Settings of the stage.
        store: Journal of the run.
        base_version: Policy version of the engine before the first update of the stage.
        state: Sampling state of the checkpoint; None at the start.
        done: Number of updates in that checkpoint.
        learns: Whether weights change; False: each update only samples (`sampling` stage).
    """

    def __init__(
        self,
        assembly: RunComponents,
        learner: Learner,
        engine: Engine,
        settings: ReinforcementSettings,
        *,
        store: RunStore,
        base_version: int,
        state: Mapping[str, Any] | None = None,
        done: int = 0,
        learns: bool = True,
    ) -> None:
        self.learns = learns
        self.assembly, self.learner, self.engine, self.settings, self.store = assembly, learner, engine, settings, store
        self.base_version, self.done = base_version, done
        self.by_recipe = settings.deterministic or settings.admit_ahead == 0
        """Whether each group is sampled with the weights of one version only."""
        self._pending_outcome: StepOutcome | None = None
        self._busy = engine.statistics.busy_seconds
        self._doing: tuple[str, float] = ("nothing", time.perf_counter())
        self.groups = UpdateGroups(
            assembly,
            engine,
            settings,
            store,
            update=done,
            state=state,
            by_recipe=self.by_recipe,
            waiting_for=self._waiting_for,
        )
        self._checked = done
        """Update before which the weight sync was last checked."""
        self._check_seconds: float | None = None
        self.causes: Mapping[str, int] = {}
        """See `Stage.causes`."""

    async def step(self, budget_share: float = 0.0) -> dict[str, float]:
        """Make the next update and return its metrics.

        An update that fails for another reason than those below is repeated with other groups; its own are quarantined.

        Args:
            budget_share: Fraction of the stage's budget that is used, from 0 to 1.

        Raises:
            NonFiniteError, TooManyFailuresError, SaveError, RunDirectoryError, WeightSyncError: If the run cannot
                continue.
            PartialUpdateError: If the update failed after some of its optimizer steps, so that neither this batch nor
                another one can be trained on with the weights in memory.
        """
        update, seed = self.done, self.assembly.resolved.recipe.seed
        self._quarantine_what_kills(update)
        is_recorded = update in self.store.consumed
        if self.by_recipe or not is_recorded:
            await self._sample_under(update)
        began = time.perf_counter()
        demonstrations = await sample_imitation(self.assembly, self.settings, update=update)
        demonstrations.record_faults(self.store.record_fault)
        applied = count_applied_steps(self.learner)
        for attempt in range(1, _ATTEMPTS + 1):
            taken = await self.groups.take(update)
            sampled = time.perf_counter()
            self.store.begin(update)
            groups, played = taken.sampled, taken.played
            self.causes = count_failure_causes(trajectory for group in played for trajectory in group.trajectories)
            mixed = [group for each in taken.mixed.groups.values() for group in each]
            metrics = (
                describe_groups(played)
                | cost_metrics(played)
                | step_cost_metrics([*played, *mixed])
                | self._staleness(groups)
            )
            await self._make_room()
            try:
                batch = UpdateBatch(tuple(groups), tuple(demonstrations.segments), self.version, budget_share)
                with self._waiting_for(_UPDATE), self._memory_reported():
                    stepped = await run_in_compute_thread(
                        train_step,
                        self.assembly.method,
                        self.learner,
                        batch,
                        taken.filtered_groups,
                        taken.mixed.groups,
                        seed=seed,
                        update=update,
                    )
                break
            except Exception as failure:  # any failure is attributed to the batch, which is quarantined
                changed = count_applied_steps(self.learner) - applied
                if changed:
                    raise PartialUpdateError(
                        f"{describe_exception(failure)}; the update failed in or after optimizer step {changed}, when "
                        "weights had changed, so it is not saved"
                    ) from failure
                if isinstance(failure, WhetstoneError) or attempt == _ATTEMPTS or self.groups.collector is None:
                    raise
                self._put_aside(update, describe_exception(failure))
        metrics |= stepped.metrics | judge_metrics(self.assembly.reward)
        if self.settings.imitation is not None:
            metrics |= demonstrations.metrics
        if self.assembly.cluster is not None:
            metrics |= self.assembly.cluster.metrics()
        self._pending_outcome = stepped.outcome
        if not self.by_recipe:
            await self._observe()
        self.learner.end_step()
        self.store.finish(update)
        self.done += 1
        self.groups.mark_used(taken)
        busy, self._busy = self._busy, self.engine.statistics.busy_seconds
        times = {"time/generation": self._busy - busy, **_time_metrics(groups, began, sampled, time.perf_counter())}
        if self._check_seconds is not None:
            times["time/sync_check"], self._check_seconds = self._check_seconds, None
        return metrics | times | self.groups.metrics(taken)

    async def settle(self) -> None:
        """Wait until everything that a checkpoint requires is recorded; see `Stage.settle`."""
        await self.groups.settle()
        await self._observe()

    async def _observe(self) -> None:
        """Pass the last step to the method's stateful components.

        In a deterministic run, this happens only after the plans of the next step are made.
        """
        if self._pending_outcome is not None:
            outcome, self._pending_outcome = self._pending_outcome, None
            await self.assembly.method.observe_step(outcome)

    @property
    def state(self) -> dict[str, Any] | None:
        """Sampling state for a checkpoint; None if the journal has it, because timing decides."""
        return self.groups.state

    @property
    def memory(self) -> dict[str, Any]:
        """State of the method's stateful components, by name."""
        return self.assembly.method.state()

    def conclude(self) -> None:
        """End the stage; see `Stage.conclude`."""
        if self.collector is not None:
            self.collector.conclude()

    async def close(self) -> None:
        """Stop sampling; turns in progress are recorded."""
        await self.groups.close()

    @property
    def collector(self) -> Collector | None:
        """Collector of sampled episodes; None before sampling starts."""
        return self.groups.collector

    def waits(self) -> list[tuple[str, str, float]]:
        """Return (component, component it waits for, seconds), the longest wait first, for the watchdog."""
        what, since = self._doing
        waits = [("the learner", what, time.perf_counter() - since)]
        if self.collector is not None:
            waits += self.collector.waits()
        return sorted(waits, key=lambda wait: -wait[2])

    async def _sample_under(self, version: int) -> None:
        """Continue sampling with the weights of a version, after the earlier groups are finished."""
        if self.collector is not None:
            await self.settle()
        await self._publish(version)
        self.groups.sample_under(version)

    async def _make_room(self) -> None:
        """Release the engine's KV cache before an update, if engine and learner share a device and take turns."""
        takes_turns = self.settings.admit_ahead == 0 and self.assembly.policy.device.type != "cpu"
        if takes_turns and implements_protocol(self.engine, SupportsSleep):
            await self.engine.sleep()

    @property
    def version(self) -> int:
        """Policy version of the trained weights."""
        return self.base_version + (self.done if self.learns else 0)

    @property
    def is_busy(self) -> bool:
        """Whether an update is running, which must not be cancelled."""
        return self._doing[0] == _UPDATE

    async def _publish(self, version: int) -> None:
        wanted = self.base_version + (version if self.learns else 0)
        in_flight = "drain" if self.by_recipe else self.settings.in_flight
        members = [(member.engine, member.learner) for member in self.assembly.trained.values()]
        for engine, learner in ((self.engine, self.learner), *members):
            if engine.version != wanted:
                with self._waiting_for("the engine to take new weights"):
                    await sync_weights(learner.weights(), engine, wanted, in_flight=in_flight)
        interval = self.settings.sync_check_interval_steps
        if self.learns and interval is not None and version % interval == 0 and version > self._checked:
            await self._check_sync(version)

    async def _check_sync(self, version: int) -> None:
        """Check that an outside engine samples from the weights of this update; see `check_outside_engine`."""
        began = time.perf_counter()
        try:
            with self._waiting_for("the check of the weight sync"):
                result = await check_outside_engine(self.assembly, self.engine)
        except WeightSyncError as error:
            raise WeightSyncError(
                f"{error}; updates since the last check, after step {self._checked}, are suspect"
            ) from None
        self._checked = version
        if result is not None:
            self._check_seconds = time.perf_counter() - began

    def _staleness(self, groups: Sequence[Group]) -> dict[str, float]:
        metrics = staleness_metrics(groups, self.version)
        oldest = metrics.get("policy/staleness_max", 0.0)
        if oldest > self.settings.max_staleness:
            raise RunDirectoryError(
                f"update {self.done + 1}: a token is {oldest:g} updates old, "
                f"more than reinforcement.max_staleness ({self.settings.max_staleness})"
            )
        return metrics

    def _quarantine_what_kills(self, update: int) -> None:
        attempts = self.store.begun.get(update, 0)
        if attempts >= _ATTEMPTS and update not in self.store.updated:
            self._put_aside(update, f"it was started {attempts} times and never finished")

    def _put_aside(self, update: int, reason: str) -> None:
        """Quarantine the groups of an update that failed, and record the fault."""
        reason = f"update {update + 1}: {reason}"
        self.store.record_fault("learner", reason)
        self.store.log(f"{reason}; its groups are quarantined and replaced")
        self.groups.discard(update)

    @contextlib.contextmanager
    def _waiting_for(self, what: str) -> Iterator[None]:
        """Report `what` as the wait of the learner within the block; see `waits`."""
        self._doing = (what, time.perf_counter())
        try:
            yield
        finally:
            self._doing = ("nothing", time.perf_counter())

    @contextlib.contextmanager
    def _memory_reported(self) -> Iterator[None]:
        """Report a smaller token budget if memory does not suffice for an update within the block."""
        before = self.learner.token_budget
        try:
            yield
        finally:
            if self.learner.token_budget < before:
                line = f"out of memory; a forward pass has {self.learner.token_budget} tokens from now on"
                self.store.record_fault("out_of_memory", line)
                self.store.log(line)


def _time_metrics(groups: Sequence[Group], began: float, sampled: float, now: float) -> dict[str, float]:
    """Return the durations of the parts of a step, and its throughput."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    waited = sum(turn.environment_seconds for trajectory in trajectories for turn in trajectory.turns)
    return {
        "time/rollout": sampled - began,
        "time/update": now - sampled,
        "time/environment_wait_mean": waited / max(1, len(trajectories)),
        "throughput/tokens_per_second": sum(each.action_tokens for each in trajectories) / (now - began),
        "throughput/episodes_per_second": len(trajectories) / (now - began),
    }
