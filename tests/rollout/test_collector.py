import asyncio
import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import ClassVar

import pytest

from whetstone.chat import user
from whetstone.environments import Observation, StepResult
from whetstone.errors import InfrastructureError, NoScoredEpisodesError, TaskError
from whetstone.evaluation import summarize_episodes
from whetstone.failure_causes import FIRST_EPISODES
from whetstone.inference import matmul_is_batch_invariant
from whetstone.rollout import Admission, GroupPlan, Independent, make_plans
from whetstone.rollout.deadlines import MeasuredDeadline
from whetstone.trajectory import EndReason, RemovalScope, Score, Task


def collect(assembly, actor, tasks, size=2, **changes):
    async def main():
        collector = replace(assembly.build_collector(actor), **changes)
        return [group async for group in collector.groups(make_plans(tasks, seed=0), Independent(group_size=size))]

    return asyncio.run(main())


def test_expert_solves_every_kind_of_task_in_the_same_loop(assembly):
    tasks = assembly.source.held_out(25)
    groups = collect(assembly, assembly.expert_actor(), tasks, size=1)
    assert {group.task.id for group in groups} == {task.id for task in tasks}
    assert all(t.solved for group in groups for t in group.trajectories)
    assert {len(t.turns) for group in groups for t in group.trajectories} == {2, 3, 4}


def test_siblings_are_sampled_with_different_seeds(assembly):
    async def main():
        engine = assembly.build_engine()
        actor = assembly.policy_actor(engine, temperature=1.0)
        try:
            collector = assembly.build_collector(actor)
            task = assembly.source.task(0)
            return [await collector.sample(GroupPlan(task, seed=0), index=i) for i in (0, 1, 0)]
        finally:
            await engine.close()

    first, sibling, repeated = asyncio.run(main())
    assert first.turns[0].action.ids == repeated.turns[0].action.ids != sibling.turns[0].action.ids


def test_failed_reward_is_not_a_reward_of_zero(assembly):
    async def reward(trajectory, task):
        if task.id == first.id:
            raise ConnectionError("the judge is down")
        return Score(1.0, success=True)

    first, *_ = tasks = assembly.source.held_out(3)
    groups = collect(assembly, assembly.expert_actor(), tasks, reward=reward)
    (failed,) = (group for group in groups if group.task is first)
    assert failed.rewards == ()
    assert {t.ended for t in failed.trajectories} == {EndReason.ERROR}
    assert {t.removal for t in failed.trajectories} == {RemovalScope.BEFORE_BASELINE}
    line = reward.__code__.co_firstlineno + 2
    cause = f"test_collector.py:{line} (reward): ConnectionError: the judge is down"
    assert failed.trajectories[0].error == f"the reward failed: {cause}"
    assert sum(len(group.rewards) for group in groups) == 4


@pytest.mark.parametrize("message", [Score(math.nan), Score(math.inf), Score(1.0, turns=(0.0, math.nan))])
def test_reward_that_is_not_a_finite_number_is_a_failed_reward(assembly, message):
    async def reward(trajectory, task):
        return message

    (group,) = collect(assembly, assembly.expert_actor(), assembly.source.held_out(1), reward=reward)
    assert group.rewards == ()
    assert {t.ended for t in group.trajectories} == {EndReason.ERROR}
    assert group.trajectories[0].error.startswith("the reward failed: ValueError: it returned ")


def test_failed_episode_does_not_affect_the_others(assembly):
    environments = []

    def environment():
        environments.append(assembly.environment())
        if len(environments) == 2:
            environments[-1].step = None  # calling it raises
        return environments[-1]

    groups = collect(assembly, assembly.expert_actor(), assembly.source.held_out(4), size=1, environment=environment)
    endings = [t.ended for group in groups for t in group.trajectories]
    assert endings.count(EndReason.ERROR) == 1
    assert endings.count(EndReason.TERMINATED) == 3


def test_number_of_concurrent_episodes_is_bounded(assembly):
    running, most = [0], [0]

    class Watched:
        def __init__(self):
            self.inner = assembly.environment()

        async def reset(self, task, *, seed):
            running[0] += 1
            most[0] = max(most[0], running[0])
            await asyncio.sleep(0.001)
            return await self.inner.reset(task, seed=seed)

        async def step(self, action):
            return await self.inner.step(action)

        async def close(self):
            running[0] -= 1

    collect(assembly, assembly.expert_actor(), assembly.source.held_out(12), environment=Watched, max_in_flight=3)
    assert most == [3]
    assert running == [0]


class FailingActor:
    """An actor whose first calls fail because the engine is gone."""

    def __init__(self, inner, failures):
        self.inner, self.left = inner, failures

    async def act(self, moment):
        if self.left > 0:
            self.left -= 1
            raise InfrastructureError("the engine is gone")
        return await self.inner.act(moment)

    def leave(self, episode):
        self.inner.leave(episode)


def test_infrastructure_failure_is_retried_and_counted(assembly):
    async def main():
        collector = assembly.build_collector(FailingActor(assembly.expert_actor(), 2))
        return await collector.sample(GroupPlan(assembly.source.task(0), seed=0)), collector.status()

    trajectory, status = asyncio.run(main())
    assert (trajectory.solved, trajectory.removal) == (True, None)
    assert (status.retried, status.episodes, status.running) == (2, 1, 0)


def test_persistent_failure_is_invalid_and_does_not_affect_siblings(assembly):
    (group,) = collect(
        assembly, FailingActor(assembly.expert_actor(), 3), [assembly.source.task(0)], size=2, max_in_flight=1
    )
    failed, sibling = group.trajectories
    assert (failed.ended, failed.removal, failed.score) == (
        EndReason.INFRASTRUCTURE,
        RemovalScope.BEFORE_BASELINE,
        None,
    )
    assert failed.error == "the engine is gone"
    assert sibling.solved


def test_tasks_can_be_infinite_and_groups_arrive_as_they_finish(assembly):
    async def main():
        read, order = [], []
        numbers = {assembly.source.task(i).id: i for i in range(100)}
        may_finish = {number: asyncio.Event() for number in range(100)}
        may_finish[1].set()
        opens = {1: 2, 2: 0}

        def tasks():
            for i in itertools.count():
                read.append(i)
                yield assembly.source.task(i)

        async def strategy(task, roller):
            number = numbers[task.id]
            group = await Independent(group_size=2)(task, roller)
            await may_finish[number].wait()
            order.append(number)
            if number in opens:
                may_finish[opens[number]].set()
            return group

        collector = replace(assembly.build_collector(assembly.expert_actor()), max_in_flight=4)
        groups = collector.groups(make_plans(tasks(), seed=0), strategy)
        first = [await anext(groups) for _ in range(3)]
        await groups.aclose()
        running = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        return len(read), order[:3], [group.task.id for group in first], running

    read, order, ids, running = asyncio.run(main())
    assert read < 12
    assert order == [1, 2, 0]
    assert ids == [assembly.source.task(i).id for i in order]
    assert not running


def test_cancelling_a_collection_closes_every_environment(assembly):
    opened, closed, five = [], [], asyncio.Event()

    class Hanging:
        async def reset(self, task, *, seed):
            opened.append(task.id)
            if len(opened) == 5:
                five.set()
            await asyncio.sleep(60)

        async def close(self):
            closed.append(1)

    async def main():
        collector = replace(assembly.build_collector(assembly.expert_actor()), environment=Hanging, max_in_flight=5)
        tasks = [assembly.source.task(i) for i in range(4)]

        async def collect_all():
            return [group async for group in collector.groups(make_plans(tasks, seed=0), Independent(group_size=2))]

        collecting = asyncio.create_task(collect_all())
        await five.wait()
        await asyncio.sleep(0.02)  # a sixth would have started by now
        status = collector.status()
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
        return status, collector.status()

    status, after = asyncio.run(main())
    assert len(opened) == len(closed) == 5
    assert (status.running, status.on_tools, after.running, after.queued) == (5, 1.0, 0, 0)


def test_groups_wait_for_the_learner_if_admission_requires_it(assembly):
    async def main():
        admission = Admission(2)
        collector = assembly.build_collector(assembly.expert_actor())
        tasks = (assembly.source.task(i) for i in itertools.count())
        groups = collector.groups(make_plans(tasks, seed=0), Independent(group_size=2), admission=admission)
        for _ in range(2):
            await anext(groups)
        third = asyncio.ensure_future(anext(groups))
        await asyncio.sleep(0.05)
        waited = not third.done()
        admission.record_update([0, 1])
        await asyncio.wait_for(third, 10)
        await groups.aclose()
        return waited

    assert asyncio.run(main())


def test_failing_source_is_reported_after_the_finished_groups(assembly):
    def tasks():
        yield assembly.source.task(0)
        raise TaskError("line 2 does not parse")

    async def main():
        groups, message = [], ""
        collector = assembly.build_collector(assembly.expert_actor())
        try:
            async for group in collector.groups(make_plans(tasks(), seed=0), Independent(group_size=2)):
                groups.append(group)
        except TaskError as error:
            message = str(error)
        return len(groups), message

    assert asyncio.run(main()) == (1, "line 2 does not parse")


@pytest.mark.skipif(
    not matmul_is_batch_invariant(),
    reason="this processor's matrix products round by the number of rows; run on x86 with PyTorch's own wheel",
)
def test_trajectories_are_identical_for_any_concurrency(assembly):
    async def main(max_in_flight):
        engine = assembly.build_engine()
        collector = replace(
            assembly.build_collector(assembly.policy_actor(engine, temperature=1.0)), max_in_flight=max_in_flight
        )
        try:
            tasks = [assembly.source.task(i) for i in range(8)]
            groups = [group async for group in collector.groups(make_plans(tasks, seed=0), Independent(group_size=8))]
        finally:
            await engine.close()
        return {
            t.id: (t.ended, t.score, [(turn.context, turn.action, turn.message, turn.observation) for turn in t.turns])
            for group in groups
            for t in group.trajectories
        }

    one, many = asyncio.run(main(1)), asyncio.run(main(64))
    assert len(one) == 64
    assert one == many


def test_repeated_task_is_sampled_again_with_distinct_names(assembly):
    async def main():
        engine = assembly.build_engine()
        collector = assembly.build_collector(assembly.policy_actor(engine, temperature=1.0))
        try:
            tasks = [assembly.source.task(0)] * 3
            return [group async for group in collector.groups(make_plans(tasks, seed=0), Independent(group_size=4))]
        finally:
            await engine.close()

    trajectories = [t for group in asyncio.run(main()) for t in group.trajectories]
    assert len({t.id for t in trajectories}) == 12
    assert len({t.turns[0].action.ids for t in trajectories}) == 12


def test_collection_without_a_playable_task_ends_and_cancels_all_episodes(assembly):
    reset = []

    class Unplayable:
        async def reset(self, task, *, seed):
            reset.append(seed)
            if len(reset) <= FIRST_EPISODES:
                raise RuntimeError("there is no such world")
            await asyncio.sleep(60)

        async def close(self):
            pass

    async def main():
        collector = replace(assembly.build_collector(assembly.expert_actor()), environment=Unplayable)
        with pytest.raises(NoScoredEpisodesError, match=r"RuntimeError: there is no such world \(32\)"):
            async for _ in collector.groups(make_plans([assembly.source.task(0)], seed=0), Independent(group_size=40)):
                pass
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()], collector.status().running

    assert asyncio.run(main()) == ([], 0)


class Crowded:
    """Prompts of odd tasks are too long for the context."""

    async def reset(self, task, *, seed):
        return Observation((user("x" * (5000 if int(task.id) % 2 else 5)),))

    async def step(self, action):
        return StepResult(Observation(()), terminated=True)

    async def close(self):
        pass


def collect_crowded(assembly, tasks):
    collector = replace(assembly.build_collector(assembly.expert_actor()), environment=Crowded)

    async def main():
        plans = make_plans([Task(str(k), "") for k in tasks], seed=0)
        return [group async for group in collector.groups(plans, Independent(group_size=2))]

    return asyncio.run(main()), collector


def test_tasks_with_too_long_prompts_are_skipped_and_counted(assembly):
    groups, collector = collect_crowded(assembly, range(6))
    assert {group.task.id: len(group.trajectories) for group in groups} == dict(zip("012345", [2, 0] * 3, strict=True))
    assert collector.too_long == 3
    came_to = summarize_episodes(groups, temperature=0)
    assert (came_to.episodes + came_to.invalid, came_to.too_long) == (6, 3)


def test_collection_of_only_too_long_prompts_fails_after_some_dozen(assembly):
    with pytest.raises(NoScoredEpisodesError, match=r"none of the first 32 tasks fits into the model's context"):
        collect_crowded(assembly, range(1, 1000, 2))


def test_group_past_its_deadline_is_returned_with_finished_episodes(assembly):
    class Slow:
        begun: ClassVar = Counter()

        async def reset(self, task, *, seed):
            Slow.begun[task.id] += 1
            self.seconds = 60 if Slow.begun[task.id] == 3 else 0
            return Observation((user(task.prompt),))

        async def step(self, action):
            await asyncio.sleep(self.seconds)
            return StepResult(Observation(()), terminated=True)

        async def close(self):
            pass

    tasks = assembly.source.held_out(2)
    groups = collect(
        assembly,
        assembly.expert_actor(),
        tasks,
        size=3,
        environment=Slow,
        group_deadline=MeasuredDeadline(2),
        max_in_flight=6,
    )
    for group in groups:
        ended = sorted(t.ended for t in group.trajectories)
        assert ended == [EndReason.TERMINATED, EndReason.TERMINATED, EndReason.TIMEOUT]
        (late,) = (t for t in group.trajectories if t.ended is EndReason.TIMEOUT)
        assert len(late.turns) == 1  # sampled turns are kept
