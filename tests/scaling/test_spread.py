"""Groups that workers play are those a collector plays itself, whoever dies meanwhile."""

import asyncio

import pytest
import torch

import crash
from tests_scaling import HereCluster
from whetstone.assembly.assembly import assemble
from whetstone.errors import InfrastructureError
from whetstone.recipe import load_recipe
from whetstone.rollout import plans_of
from whetstone.scaling import publishing_engine, replicated_engine, worker_pool
from whetstone.scaling.protocol import Gone
from whetstone.trajectory import TokenSequence

pytestmark = pytest.mark.slow  # what they rely on is tested with less in test_spread_collector.py and its neighbours
GROUPS = 4


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch):
    for module in (publishing_engine, replicated_engine, worker_pool):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)


@pytest.fixture(scope="module")
def talking(speaking_policy):
    """Parts of a recipe whose episodes have several turns."""
    torch.manual_seed(0)
    return assemble(load_recipe("demo", crash.overrides_of("synchronous", speaking_policy)))


class Record:
    """See `GroupRecord`, in memory."""

    def __init__(self):
        self.turns, self.added = {}, []

    def played(self, episode):
        return tuple(self.turns.get(episode, ()))

    def begun_episodes(self, name):
        return {episode: tuple(turns) for episode, turns in self.turns.items() if episode.startswith(name)}

    def add(self, episode, turn):
        self.added.append(episode)
        self.turns.setdefault(episode, []).append(turn)

    def drop(self, episode):
        self.turns.pop(episode, None)


def played(assembly, *, cluster=None, meanwhile=None, record=None, **how):
    """The groups of the first tasks, by a collector itself or by a cluster's workers."""

    async def main():
        plans = list(plans_of([assembly.source.task(k) for k in range(GROUPS)], seed=7, name="g/"))
        said = []
        if cluster is None:
            engine = assembly.engine()
            collector = assembly.collector(assembly.policy_actor(engine, temperature=1.0), method=assembly.method)
            groups = [group async for group in collector.groups(plans, assembly.strategy)]
            await engine.close()
            return groups, None, said
        async with HereCluster(assembly, say=said.append, **cluster) as here:
            actor = assembly.policy_actor(here.engine, temperature=1.0)
            collector = here.spread(assembly.collector(actor, record=record, method=assembly.method))
            if meanwhile is not None:
                killing = asyncio.ensure_future(meanwhile(here))
            groups = [group async for group in collector.groups(plans, assembly.strategy)]
            if meanwhile is not None:
                await killing
            return groups, here, said

    groups, here, said = asyncio.run(main())
    return sorted(groups, key=lambda group: group.number), here, said


async def until(true):
    """Wait for something that nobody tells of."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def told(groups):
    """What episodes came to, without how long they took."""
    return [
        (t.id, t.ended, t.score, [(n.action.ids, n.action.logprobs, n.observation) for n in t.turns])
        for group in groups
        for t in group.trajectories
    ]


def test_workers_and_replicas_play_the_same_episodes(talking):
    alone, _, _ = played(talking)
    spread, here, _ = played(talking, cluster={})
    assert told(spread) == told(alone)
    assert any(len(t.turns) > 1 for group in alone for t in group.trajectories)
    assert all(worker.works for worker in here.workers)
    assert all(replica.drawn_for for replica in here.replicas)


def test_an_episode_asks_one_replica_alone(talking):
    _, here, _ = played(talking, cluster={})
    one, two = (set(replica.drawn_for) for replica in here.replicas)
    assert one
    assert two
    assert not one & two


def test_a_worker_that_dies_loses_no_turn_and_no_group(talking):
    record = Record()

    async def kill(here):
        await until(lambda: len(record.added) >= 6)
        here.workers[0].kill()
        here.workers[1].kill()

    alone, _, _ = played(talking)
    spread, here, said = played(talking, cluster={}, meanwhile=kill, record=record)
    assert told(spread) == told(alone)
    assert here.pool.taken_back > 0
    assert any("died; its groups are played by others" in line for line in said)
    again = [work for worker in here.workers for work in worker.works if work.played]
    assert again  # behind the turns on record


def test_a_replica_that_dies_is_given_all_weights_before_it_draws_again(talking):
    async def kill(here):
        await until(lambda: here.replicas[0].drawn_for)
        here.replicas[0].kill()

    alone, _, _ = played(talking)
    spread, here, _ = played(talking, cluster={}, meanwhile=kill)
    assert told(spread) == told(alone)
    assert [parcel.since for parcel in here.replicas[0].loads] == [None, None]


def test_a_replica_that_missed_a_version_refuses_a_parcel_of_changes(talking):
    async def main():
        async with HereCluster(talking, workers=1) as here:
            await until(lambda: all(seat.up for seat in here.engine.seats))
            weights = {
                name: torch.nn.Parameter(p.detach() * 1.5) for name, p in talking.policy.model.named_parameters()
            }
            await here.engine.load_weights(weights, 1)
            versions = [(await replica.status()).version for replica in here.replicas]
            parcel = here.replicas[0].loads[-1]
            here.replicas[0].kill()
            with pytest.raises(Gone, match="not at version 0"):
                await here.replicas[0].load(parcel, in_flight="drain")
            await until(lambda: here.replicas[0].thing._ready)
            scores = [(await replica.score(TokenSequence([5, 6, 7, 8]), start=1)).logprobs for replica in here.replicas]
            return versions, parcel.since, scores

    versions, since, scores = asyncio.run(main())
    assert (versions, since) == ([1, 1], 0)
    assert scores[0] == scores[1]


def test_where_all_workers_are_gone_the_run_is_told_so(talking):
    async def main():
        async with HereCluster(talking) as here:
            here.pool.patience_seconds = 0.05
            for worker in here.workers:
                worker.kill(back=False)
            actor = talking.policy_actor(here.engine, temperature=1.0)
            collector = here.spread(talking.collector(actor, method=talking.method))
            plan = next(plans_of([talking.source.task(0)], seed=7))
            with pytest.raises(InfrastructureError, match=r"none of 2 environment workers came back within 0\.05 s"):
                await collector.group(plan, talking.strategy)

    asyncio.run(main())


def test_what_a_strategy_raises_in_a_worker_is_raised_here(talking):
    async def main():
        async with HereCluster(talking) as here:
            actor = talking.policy_actor(here.engine, temperature=1.0)
            collector = here.spread(talking.collector(actor, method=talking.method))
            plan = next(plans_of([talking.source.task(0)], seed=7))

            async def broken(task, roller):
                raise ZeroDivisionError("by a strategy")

            with pytest.raises(ZeroDivisionError, match="by a strategy"):
                await collector.group(plan, broken)
            return here.pool.posts

    assert all(post.used == 0 for post in asyncio.run(main()))


def test_no_worker_is_given_more_than_its_places(talking):
    most, run = [], []

    async def look(here):
        for _ in range(200):
            most.append(max(post.used for post in here.pool.posts))
            run.append(max([status.running for status in here.pool.seen()], default=0))
            await asyncio.sleep(0.001)

    played(talking, cluster={"places": 4}, meanwhile=look)
    assert 0 < max(run) <= 4
    assert 0 < max(most) < 4 + 4  # a group of four begins where one place is free; its others wait for theirs


def test_each_episode_gives_its_place_back_as_it_ends(talking, monkeypatch):
    freed, free = [], worker_pool.WorkerPool.free
    monkeypatch.setattr(worker_pool.WorkerPool, "free", lambda pool, place: (freed.append(place), free(pool, place)))
    groups, here, _ = played(talking, cluster={})
    assert len(freed) == sum(len(group.trajectories) for group in groups)
    assert all(post.used == 0 for post in here.pool.posts)
