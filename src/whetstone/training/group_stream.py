"""Stream of groups for updates: sampling runs concurrently with training, as far ahead as admission allows.

    admission → plans → collector → outcomes → recorded → buffer → (staleness bound) → an update

Sampling, tools and rewards continue while the learner computes. The buffer is bounded by admission: at most
(admit_ahead + 1) · groups_per_update groups are alive.

Note:
    A group counts only once it is recorded, or an interruption between the two would lose it. A group that was recorded
    before an interruption is loaded and not sampled again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from whetstone.errors import PromptTooLong, SamplingExhausted, TooManyFailuresError, WhetstoneError
from whetstone.failure_causes import StartupFailureMonitor, count_causes, find_failure_cause, format_causes
from whetstone.recipe.resume_changes import RecipeChange
from whetstone.record.run_store import RunStore
from whetstone.rollout import Admission, Collector, GroupOutcome, GroupPlan, Strategy, next_batch
from whetstone.rollout.protocol import DynamicSampling
from whetstone.trajectory import EndReason, Group
from whetstone.user_code import describe_exception

_EPISODES_JUDGED = 1000
"""Number of latest episodes among which failures are counted."""


class _FailureBudget:
    """Stops sampling if more than `max_failures` of the last thousand episodes failed."""

    def __init__(self, store: RunStore, max_failures: int) -> None:
        self.store, self.max_failures = store, max_failures
        self._recent: deque[bool] = deque(maxlen=_EPISODES_JUDGED)

    def count(self, failed: bool, kind: str, cause: str, episode: str) -> None:
        """Count an episode, and record a fault if it failed.

        Args:
            failed: Whether the episode failed.
            kind: Kind of the fault, its end reason.
            cause: Cause in one line.
            episode: Id of the episode.

        Raises:
            TooManyFailuresError: If too many episodes failed.
        """
        self._recent.append(failed)
        if not failed:
            return
        self.store.record_fault(kind, cause, episode=episode)
        faults = sum(self._recent)
        if faults > self.max_failures:
            causes = format_causes(count_causes(self.store.causes[-faults:]))
            raise TooManyFailuresError(
                f"{faults} of the last {len(self._recent)} episodes failed, more than reinforcement.max_failures "
                f"({self.max_failures}): {causes}; the last: {episode}"
            )


class GroupStream:
    """Endless stream of sampled groups for the updates of reinforcement.

    Created by `UpdateGroups`; sampling runs in a task from `start` to `close`.

    Args:
        collector: Plays the episodes.
        strategy: Strategy that samples a group.
        plan: Returns the sampling plan of a group by its number.
        store: Journal of the run.
        admission: Admission, with the groups that are alive.
        next_number: First number that was never admitted.
        max_staleness: Maximum policy lag of any token in a batch, in updates.
        in_order: Whether an update uses the oldest groups, and waits for them, even if later ones are finished.
        max_failures: Number of failed episodes among the last thousand above which sampling stops.
        refill: Dynamic sampling, which accepts or rejects groups; rejected ones are replaced. None: all are accepted.
    """

    def __init__(
        self,
        collector: Collector,
        strategy: Strategy,
        plan: Callable[[int], GroupPlan],
        *,
        store: RunStore,
        admission: Admission,
        next_number: int,
        max_staleness: int,
        in_order: bool,
        max_failures: int,
        refill: DynamicSampling | None = None,
    ) -> None:
        self.collector, self.strategy, self.plan, self.store = collector, strategy, plan, store
        self.admission, self.next_number = admission, next_number
        self.max_staleness, self.in_order = max_staleness, in_order
        self._failures = _FailureBudget(store, max_failures)
        self.refill = refill
        self.filtered_groups: dict[int, Group] = {}
        """Groups that were sampled for the next update and rejected."""
        self.expired = 0
        """Number of groups that were discarded for their age."""
        self._room = StartupFailureMonitor("tasks", "fits into the model's context")
        self._finished: dict[int, Group] = {}
        self._changed = asyncio.Event()
        self._sampling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start sampling, after loading the rejected groups of the interrupted update."""
        reported = {number for numbers in self.store.passed_over.values() for number in numbers}
        for number, reason in self.store.lost.items():
            if reason == "passed_over" and number not in reported:
                self.filtered_groups[number] = self.store.load(number, self.plan(number).task)
        self._sampling = asyncio.create_task(self._sample())

    async def close(self) -> None:
        """Stop sampling. Running episodes are cancelled; their turns are recorded."""
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)

    @property
    def finished(self) -> int:
        """Number of finished groups that wait for an update or belong to the running one."""
        return len(self._finished)

    def state(self, *, without: Collection[int]) -> dict[str, Any]:
        """Return the sampling state for a checkpoint.

        Args:
            without: Numbers of the groups that the last update used.
        """
        live = {str(number): version for number, version in self.admission.live.items() if number not in without}
        return {"next": self.next_number, "live": live}

    async def batch(self, *, timeout_seconds: float | None = None) -> list[Group]:
        """Wait for the groups of the next update and return them in ascending order.

        The groups stay in the buffer until `advance`.

        Args:
            timeout_seconds: Time after which the finished groups are returned, once there is at least one; None: no
                limit.

        Raises:
            TooManyFailuresError: If too many episodes failed.
            WhetstoneError: If a task cannot be played at all, or a group cannot be stored.
        """
        self._expire()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds) as deadline:
                return await self.take(await self._chosen(short=False))
        return await self.take(await self._chosen(short=deadline.expired()))

    async def take(self, numbers: Sequence[int]) -> list[Group]:
        """Wait for the groups of a recorded update and return them in the given order."""
        while not self._finished.keys() >= set(numbers):
            await self._wait()
        return [self._finished[number] for number in numbers]

    async def idle(self) -> None:
        """Wait until all groups that may be admitted are finished, before a checkpoint is saved."""
        while self.admission.free_slots > 0 or not self.admission.live.keys() <= self._finished.keys():
            await self._wait()

    def discard(self, numbers: Collection[int]) -> None:
        """Discard groups; admitted ones may be replaced by others."""
        for number in numbers:
            self._finished.pop(number, None)
            if number in self.admission.live:
                self.admission.discard_group(number)

    def rejected_before(self, numbers: Sequence[int]) -> list[int]:
        """Return the rejected groups that were sampled before the last of these groups, ascending."""
        return sorted(number for number in self.filtered_groups if not numbers or number < max(numbers))

    def advance(self, consumed: list[int], filtered_groups: Sequence[int] = ()) -> None:
        """Remove the groups of a finished update from the buffer, and admit further ones.

        Args:
            consumed: Numbers of the groups that the update used.
            filtered_groups: Numbers of the groups that were sampled for it and rejected.
        """
        for number in filtered_groups:
            self.filtered_groups.pop(number, None)
        self.admission.record_update(consumed)
        for number in consumed:
            del self._finished[number]

    async def _chosen(self, *, short: bool) -> list[int]:
        while True:
            live, size = self.admission.live, self.admission.num_wanted
            ready = {number: live[number] for number in self._finished}
            if size == 0:
                return []  # all groups were rejected; the update trains nothing
            if self.in_order:
                oldest = sorted(live)[:size]
                numbers = oldest if len(oldest) == size and self._finished.keys() >= set(oldest) else None
            else:
                running = {number: began for number, began in live.items() if number not in ready}
                numbers = next_batch(
                    ready,
                    running,
                    version=self.admission.version,
                    groups_per_update=size,
                    max_staleness=self.max_staleness,
                )
            if numbers is None and short and ready:
                numbers = sorted(sorted(ready, key=lambda number: (ready[number], number))[:size])
            if numbers is not None:
                return numbers
            await self._wait()

    async def _wait(self) -> None:
        """Wait until a group finishes or is lost; raise the error of the sampling task."""
        if self._sampling is not None and self._sampling.done():
            self._sampling.result()  # raises its exception
            raise RuntimeError("sampling ended by itself")  # tasks are endless
        self._changed.clear()
        await self._changed.wait()

    async def _sample(self) -> None:
        try:
            async with contextlib.aclosing(self.collector.outcomes(self._plans(), self.strategy)) as outcomes:
                async for outcome in outcomes:
                    self._take_in(outcome)
        finally:
            self._changed.set()

    def _numbers(self) -> Iterator[int]:
        """Yield the numbers of admitted groups that are not consumed, then new ones without end."""
        yield from sorted(self.admission.live)
        yield from (number for number in count(self.next_number) if number not in self.store.lost)

    async def _plans(self) -> AsyncGenerator[GroupPlan]:
        """Yield each plan when it may start; recorded groups are loaded instead of played."""
        for number in self._numbers():
            await self.admission.admit_group(number)
            plan = self.plan(number)
            self.next_number = max(self.next_number, number + 1)
            if number in self.store.lost:  # after its admission
                self.discard([number])
                self._changed.set()
                continue
            if number not in self.store.admitted:
                self.store.admit_group(number, self.admission.live[number], plan.chosen)
            if not self.store.has_group(number):
                yield plan
                continue
            self._buffer(self._counted(self.store.load(number, plan.task)))
            await asyncio.sleep(0)  # many may be on record

    def _take_in(self, outcome: GroupOutcome) -> None:
        """Record a finished group; if it failed, admit another one instead."""
        number, failure = outcome.plan.number, outcome.failure
        if isinstance(failure, PromptTooLong):  # a retry would have the same result
            self._room.record_result(str(failure))
            if "too_long" not in self.store.lost.values():
                self.store.log(f"{failure}; such tasks are left out and counted (group/prompt_too_long)")
            self._lose(number, "too_long")
        elif isinstance(failure, WhetstoneError):
            raise failure
        elif failure is not None:  # a strategy may raise anything: its group is lost
            self._failures.count(True, "strategy", describe_exception(failure), f"group {number}")
            self._lose(number, "failed")
        else:
            self._room.record_result(None)
            for trajectory in outcome.group.trajectories:
                failed = not trajectory.ended.valid and trajectory.ended is not EndReason.ABORTED
                self._failures.count(failed, str(trajectory.ended), find_failure_cause(trajectory), trajectory.id)
                if "not_closed" in trajectory.marks:
                    self.store.record_fault("not_closed", f"{trajectory.id}: {find_failure_cause(trajectory)}")
            self.store.store_group(outcome.group)
            self._buffer(self._counted(outcome.group))

    def _lose(self, number: int, reason: str) -> None:
        self.store.record_lost_group(number, reason)
        self.admission.discard_group(number)
        self._changed.set()

    def _buffer(self, group: Group) -> None:
        if group.number in self.admission.live:
            self._finished[group.number] = group
        self._changed.set()

    def _counted(self, group: Group) -> Group:
        """Return the group; if dynamic sampling rejects it, record that.

        Raises:
            SamplingExhausted: If too many groups were rejected and `when_exhausted` is `stop`.
        """
        if self.refill is None or self.refill(group):
            return group
        number = group.number
        self.store.record_lost_group(number, "passed_over")
        self.filtered_groups[number] = group
        if len(self.filtered_groups) <= (self.refill.max_tried - 1) * self.admission.groups_per_update:
            self.admission.discard_group(number)
            return group
        if self.refill.when_exhausted == "stop":
            rewards = [reward for tried in self.filtered_groups.values() for reward in tried.rewards]
            mean = sum(rewards) / max(1, len(rewards))
            raise SamplingExhausted(
                f"dynamic sampling exhausted: {len(self.filtered_groups)} groups rejected for an update of "
                f"{self.admission.groups_per_update} (mean reward {mean:.3g}); use tasks that are neither always nor "
                "never solved, or a larger rollout.group_size; rollout.dynamic_sampling.when_exhausted: "
                "continue takes the accepted ones"
            )
        self.admission.withdraw_group(number)
        return group

    def _expire(self) -> None:
        """Discard groups that exceed the staleness bound.

        This happens only after steps whose deadline passed before their groups were finished.
        """
        limit = self.admission.version - self.max_staleness
        late = [number for number, began in self.admission.live.items() if began < limit]
        for number in late:
            self.store.record_lost_group(number, "expired")
        self.expired += len(late)
        self.discard(late)


def restore_admission(
    store: RunStore,
    state: Mapping[str, Any] | None,
    *,
    groups_per_update: int,
    admit_ahead: int,
    version: int,
    updates: int,
) -> tuple[Admission, int]:
    """Restore the admission of a resumed stage, from a checkpoint or from the journal.

    Args:
        store: Journal of the run.
        state: Sampling state of the checkpoint; None: the journal has it.
        groups_per_update: Number of groups per update.
        admit_ahead: Number of updates for which groups are sampled ahead.
        version: Policy version of the next update.
        updates: Number of updates of the whole stage.

    Returns:
        The admission, and the first number that was never admitted.
    """
    if state is not None:
        live = {int(number): began for number, began in state["live"].items() if int(number) not in store.lost}
        following = state["next"]
    else:
        live = {number: store.admitted[number] for number in store.list_waiting_groups()}
        following = max(store.admitted, default=-1) + 1
    total = updates * groups_per_update
    return Admission(groups_per_update, admit_ahead=admit_ahead, version=version, live=live, total=total), following


def discard_groups(store: RunStore, state: Mapping[str, Any] | None, change: RecipeChange) -> dict[str, Any] | None:
    """Discard the unused groups that were sampled with the recipe before a change.

    Repeated after an interruption, the call discards no group of the new recipe.

    Args:
        store: Journal of the run.
        state: Sampling state of the checkpoint at the change; None: the journal has it.
        change: Change of the recipe.

    Returns:
        The state with which sampling continues.
    """
    following = max(change.next_group, state["next"] if state is not None else 0)
    if any(number < following for number in store.consumed.get(change.step, ())):  # of an update that did not finish
        store.record_quarantine(change.step)
    used = {number for update, numbers in store.consumed.items() if update < change.step for number in numbers}
    used |= {number for numbers in store.passed_over.values() for number in numbers}
    for number in sorted(store.admitted):
        if number < following and number not in used and store.lost.get(number, "passed_over") == "passed_over":
            store.record_lost_group(number, "recipe_changed")
    return {"next": following, "live": {}} if state is not None or change.step == 0 else None
