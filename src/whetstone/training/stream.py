"""Where do the groups of an update come from? From sampling that runs beside learning, as far ahead as it may.

    admission → plans → collector → outcomes → kept on record → buffer → (the deadline rule) → an update

Sampling, tools and rewards go on while the learner computes. The buffer is bounded by admission: no more groups are
alive than (admit_ahead + 1) · groups_per_update.

Easy to get wrong: a group counts once it is on record and not before, or a kill between the two would lose it; and one
that is on record already, from before a kill, is taken from there and not sampled again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from whetstone.causes import Beginning, cause_of, counted_causes, listed
from whetstone.errors import FaultBudgetError, PromptTooLong, QuotaError, WhetstoneError
from whetstone.recipe.continuing import RecipeChange
from whetstone.record.store import RunStore
from whetstone.rollout import Admission, Collector, GroupOutcome, Plan, Strategy, next_batch
from whetstone.rollout.protocol import DynamicSampling
from whetstone.trajectory import EndReason, Group
from whetstone.user_code import describe_exception

_EPISODES_JUDGED = 1000


class GroupStream:
    """Groups without end.

    Args:
        plan: The group of a number.
        store: Where they are kept.
        admission: Knows which groups are alive already.
        next_number: The first that was never let in.
        max_staleness: Updates the oldest token of an update may lie back.
        in_order: Whether an update takes the oldest groups there are, and waits for them, whatever is finished.
        max_failures: Failed episodes among the last thousand above which sampling stops.
        refill: Which groups count; others are sampled in the place of the rest. None: all do.
    """

    def __init__(
        self,
        collector: Collector,
        strategy: Strategy,
        plan: Callable[[int], Plan],
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
        self.max_staleness, self.in_order, self.max_failures = max_staleness, in_order, max_failures
        self.refill = refill
        self.passed_over: dict[int, Group] = {}
        """Groups that were sampled for the next update and did not count."""
        self.expired = 0
        """Groups that were thrown away for their age."""
        self._room = Beginning("tasks", "fits into the model's context")
        self._finished: dict[int, Group] = {}
        self._changed = asyncio.Event()
        self._judged: deque[bool] = deque(maxlen=_EPISODES_JUDGED)
        self._sampling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Sampling begins."""
        heard = {number for numbers in self.store.passed_over.values() for number in numbers}
        for number, reason in self.store.lost.items():
            if reason == "passed_over" and number not in heard:
                self.passed_over[number] = self.store.load(number, self.plan(number).task)
        self._sampling = asyncio.create_task(self._sample())

    async def close(self) -> None:
        """Sampling stops. Episodes under way are cut; their turns are on record."""
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)

    @property
    def finished(self) -> int:
        """Groups that wait for an update, or are in the one under way."""
        return len(self._finished)

    def state(self, *, without: Collection[int]) -> dict[str, Any]:
        """What decides which groups come next, without those just consumed."""
        live = {str(number): version for number, version in self.admission.live.items() if number not in without}
        return {"next": self.next_number, "live": live}

    async def batch(self, *, timeout_seconds: float | None = None) -> list[Group]:
        """The groups of the next update, ascending; waits for them. They stay here until `advance`.

        Args:
            timeout_seconds: After which those that are finished must do, once there is one.

        Raises:
            FaultBudgetError: Too much failed.
            WhetstoneError: A task cannot be played at all, or nothing can be kept.
        """
        self._expire()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds) as deadline:
                numbers = await self._chosen(short=False)
            return [self._finished[number] for number in numbers]
        numbers = await self._chosen(short=deadline.expired())
        return [self._finished[number] for number in numbers]

    async def take(self, numbers: Sequence[int]) -> list[Group]:
        """These groups, when they are finished: those of an update on record."""
        while not self._finished.keys() >= set(numbers):
            await self._wait()
        return [self._finished[number] for number in numbers]

    async def idle(self) -> None:
        """Wait until nothing is under way: all that may be let in was, and is finished."""
        while self.admission.room > 0 or not self.admission.live.keys() <= self._finished.keys():
            await self._wait()

    def discard(self, numbers: Collection[int]) -> None:
        """These groups are not to be used: others may take the place of those that were let in."""
        for number in numbers:
            self._finished.pop(number, None)
            if number in self.admission.live:
                self.admission.reject(number)

    def beside(self, numbers: Sequence[int]) -> list[int]:
        """Groups that were sampled before the last of these and did not count, ascending."""
        return sorted(number for number in self.passed_over if not numbers or number < max(numbers))

    def advance(self, consumed: list[int], passed_over: Sequence[int] = ()) -> None:
        """One more update was made, of these groups; those were sampled for it and did not count."""
        for number in passed_over:
            self.passed_over.pop(number, None)
        self.admission.advance(consumed)
        for number in consumed:
            del self._finished[number]

    async def _chosen(self, *, short: bool) -> list[int]:
        while True:
            live, size = self.admission.live, self.admission.wanted
            ready = {number: live[number] for number in self._finished}
            if size == 0:
                return []  # nothing counts; the update learns nothing
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
        """Until something changed."""
        if self._sampling is not None and self._sampling.done():
            self._sampling.result()  # raises what it ended by
            raise RuntimeError("sampling ended by itself")  # tasks are without end
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
        """Those let in before and not consumed, then new ones without end."""
        yield from sorted(self.admission.live)
        yield from (number for number in count(self.next_number) if number not in self.store.lost)

    async def _plans(self) -> AsyncGenerator[Plan]:
        """What is to be sampled, each when it may begin. What is on record already is taken from there."""
        for number in self._numbers():
            await self.admission.enter(number)
            plan = self.plan(number)
            self.next_number = max(self.next_number, number + 1)
            if number in self.store.lost:  # since it was let in
                self.discard([number])
                self._changed.set()
                continue
            if number not in self.store.admitted:
                self.store.admit(number, self.admission.live[number], plan.chosen)
            if not self.store.holds(number):
                yield plan
                continue
            self._buffer(self._counted(self.store.load(number, plan.task)))
            await asyncio.sleep(0)  # many may be on record

    def _take_in(self, outcome: GroupOutcome) -> None:
        """Put the group on record; where there is none, another takes its place."""
        number, failure = outcome.plan.number, outcome.failure
        if isinstance(failure, PromptTooLong):  # the same for whoever tries again
            self._room.see(str(failure))
            if "too_long" not in self.store.lost.values():
                self.store.say(f"{failure}; such tasks are left out and counted (group/prompt_too_long)")
            self._lose(number, "too_long")
        elif isinstance(failure, WhetstoneError):
            raise failure
        elif failure is not None:  # a strategy is foreign code: its group is lost
            self._judge(True, "strategy", describe_exception(failure), f"group {number}")
            self._lose(number, "failed")
        else:
            self._room.see(None)
            for trajectory in outcome.group.trajectories:
                failed = not trajectory.ended.valid and trajectory.ended is not EndReason.ABORTED
                self._judge(failed, str(trajectory.ended), cause_of(trajectory), trajectory.id)
                if "not_closed" in trajectory.marks:
                    self.store.fault("not_closed", f"{trajectory.id}: {cause_of(trajectory)}")
            self.store.keep(outcome.group)
            self._buffer(self._counted(outcome.group))

    def _lose(self, number: int, reason: str) -> None:
        self.store.lose(number, reason)
        self.admission.reject(number)
        self._changed.set()

    def _buffer(self, group: Group) -> None:
        if group.number in self.admission.live:
            self._finished[group.number] = group
        self._changed.set()

    def _counted(self, group: Group) -> Group:
        """The group, passed over where it does not count."""
        if self.refill is None or self.refill(group):
            return group
        number = group.number
        self.store.lose(number, "passed_over")
        self.passed_over[number] = group
        if len(self.passed_over) <= (self.refill.max_tried - 1) * self.admission.groups_per_update:
            self.admission.reject(number)
            return group
        if self.refill.when_exhausted == "stop":
            rewards = [reward for tried in self.passed_over.values() for reward in tried.rewards]
            mean = sum(rewards) / max(1, len(rewards))
            raise QuotaError(
                f"dynamic sampling exhausted: {len(self.passed_over)} groups rejected for an update of "
                f"{self.admission.groups_per_update} (mean reward {mean:.3g}); tasks that are neither always nor never "
                "solved, or a larger rollout.group_size, would count; rollout.dynamic_sampling.when_exhausted: "
                "continue takes what there is"
            )
        self.admission.withdraw(number)
        return group

    def _judge(self, failed: bool, kind: str, cause: str, episode: str) -> None:
        self._judged.append(failed)
        if not failed:
            return
        self.store.fault(kind, cause, episode=episode)
        faults = sum(self._judged)
        if faults > self.max_failures:
            causes = listed(counted_causes(self.store.causes[-faults:]))
            raise FaultBudgetError(
                f"{faults} of the last {len(self._judged)} episodes failed, more than reinforcement.max_failures "
                f"({self.max_failures}): {causes}; the last: {episode}"
            )

    def _expire(self) -> None:
        """Throw away what can no longer be in time; only where steps closed without their due groups."""
        limit = self.admission.version - self.max_staleness
        late = [number for number, began in self.admission.live.items() if began < limit]
        for number in late:
            self.store.lose(number, "expired")
        self.expired += len(late)
        self.discard(late)


def admission_of(
    store: RunStore,
    state: Mapping[str, Any] | None,
    *,
    groups_per_update: int,
    admit_ahead: int,
    version: int,
    updates: int,
) -> tuple[Admission, int]:
    """(admission, the first number never let in) as a checkpoint knows them, or as the record has them by now.

    Args:
        state: What a checkpoint kept; None: as the record has them.
        updates: Of the whole stage.
    """
    if state is not None:
        live = {int(number): began for number, began in state["live"].items() if int(number) not in store.lost}
        following = state["next"]
    else:
        live = {number: store.admitted[number] for number in store.waiting()}
        following = max(store.admitted, default=-1) + 1
    total = updates * groups_per_update
    return Admission(groups_per_update, admit_ahead=admit_ahead, version=version, live=live, total=total), following


def discard_groups(store: RunStore, state: Mapping[str, Any] | None, change: RecipeChange) -> dict[str, Any] | None:
    """Discard the groups that were sampled with the recipe before a change and that no update used.

    Called again after a kill, it discards no group of the new recipe.

    Args:
        state: Sampling state of the checkpoint at the change; None: the record decides which groups come next.

    Returns:
        The state with which sampling continues.
    """
    following = max(change.next_group, state["next"] if state is not None else 0)
    if any(number < following for number in store.consumed.get(change.step, ())):  # of an update that did not finish
        store.quarantine(change.step)
    used = {number for update, numbers in store.consumed.items() if update < change.step for number in numbers}
    used |= {number for numbers in store.passed_over.values() for number in numbers}
    for number in sorted(store.admitted):
        if number < following and number not in used and store.lost.get(number, "passed_over") == "passed_over":
            store.lose(number, "recipe_changed")
    return {"next": following, "live": {}} if state is not None or change.step == 0 else None
