import asyncio
from dataclasses import replace

from whetstone.rollout import Independent
from whetstone.trajectory import EndReason, Removal, Score


def collect(assembly, actor, tasks, size=2, **changes):
    async def main():
        collector = replace(assembly.collector(actor, seed=0), **changes)
        return [group async for group in collector.groups(tasks, Independent(group_size=size))]

    return asyncio.run(main())


def test_the_expert_solves_every_kind_of_task_through_the_same_loop(assembly):
    tasks = assembly.source.held_out(25)
    groups = collect(assembly, assembly.expert_actor(), tasks, size=1)
    assert {group.task.id for group in groups} == {task.id for task in tasks}
    assert all(t.solved for group in groups for t in group.trajectories)
    assert {len(t.turns) for group in groups for t in group.trajectories} == {2, 3, 4}


def test_siblings_are_sampled_under_seeds_of_their_own(assembly):
    async def main():
        engine = assembly.engine()
        actor = assembly.policy_actor(engine, temperature=1.0)
        try:
            collector = assembly.collector(actor, seed=0)
            task = assembly.source.task(0)
            return [await collector.sample(task, index=i) for i in (0, 1, 0)]
        finally:
            await engine.close()

    first, sibling, again = asyncio.run(main())
    assert first.turns[0].action.ids == again.turns[0].action.ids != sibling.turns[0].action.ids


def test_a_reward_that_fails_is_no_reward_of_zero(assembly):
    async def reward(trajectory, task):
        if task.id == first.id:
            raise ConnectionError("the judge is down")
        return Score(1.0, success=True)

    first, *_ = tasks = assembly.source.held_out(3)
    groups = collect(assembly, assembly.expert_actor(), tasks, reward=reward)
    (failed,) = (group for group in groups if group.task is first)
    assert failed.rewards == ()
    assert {t.ended for t in failed.trajectories} == {EndReason.ERROR}
    assert {t.removal for t in failed.trajectories} == {Removal.BEFORE_BASELINE}
    assert failed.trajectories[0].error == "the reward failed: ConnectionError: the judge is down"
    assert sum(len(group.rewards) for group in groups) == 4


def test_an_episode_that_fails_leaves_the_others_alone(assembly):
    made = []

    def environment():
        made.append(assembly.environment())
        if len(made) == 2:
            made[-1].step = None  # calling it raises
        return made[-1]

    groups = collect(assembly, assembly.expert_actor(), assembly.source.held_out(4), size=1, environment=environment)
    endings = [t.ended for group in groups for t in group.trajectories]
    assert endings.count(EndReason.ERROR) == 1
    assert endings.count(EndReason.TERMINATED) == 3


def test_no_more_episodes_run_at_once_than_allowed(assembly):
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
