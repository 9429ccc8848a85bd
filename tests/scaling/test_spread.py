"""Groups played by workers equal those of a local collector, whichever actors die."""

import asyncio

import pytest
import torch

import crash
from support.scaling import HereCluster
from whetstone.assembly.assembly import assemble
from whetstone.errors import InfrastructureError
from whetstone.recipe import load_recipe
from whetstone.rollout import make_plans
from whetstone.scaling import replicated_engine, weight_sync_engine, worker_pool
from whetstone.scaling.protocol import ActorUnavailable
from whetstone.trajectory import TokenSequence

pytestmark = pytest.mark.slow  # the parts are tested in test_distributed_collector.py and other files of this folder
GROUPS = 4


@pytest.fixture(autouse=True)
def _short_polling(monkeypatch):
    for module in (weight_sync_engine, replicated_engine, worker_pool):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)


@pytest.fixture(scope="module")
def multi_turn(speaking_policy):
    """Return the assembly of a recipe whose episodes have several turns."""
    torch.manual_seed(0)
    return assemble(load_recipe("demo", crash.build_overrides("synchronous", speaking_policy)))


class Record:
    """Record turns in memory; see `GroupRecord`."""

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
    """Return the groups of the first tasks, from a local collector or from a cluster of workers."""

    async def main():
        plans = list(make_plans([assembly.source.task(k) for k in range(GROUPS)], seed=7, name="g/"))
        messages = []
        if cluster is None:
            engine = assembly.build_engine()
            collector = assembly.build_collector(assembly.policy_actor(engine, temperature=1.0), method=assembly.method)
            groups = [group async for group in collector.groups(plans, assembly.strategy)]
            await engine.close()
            return groups, None, messages
        async with HereCluster(assembly, say=messages.append, **cluster) as cluster_:
            actor = assembly.policy_actor(cluster_.engine, temperature=1.0)
            collector = cluster_.distribute_collector(
                assembly.build_collector(actor, record=record, method=assembly.method)
            )
            if meanwhile is not None:
                killing = asyncio.ensure_future(meanwhile(cluster_))
            groups = [group async for group in collector.groups(plans, assembly.strategy)]
            if meanwhile is not None:
                await killing
            return groups, cluster_, messages

    groups, cluster_, messages = asyncio.run(main())
    return sorted(groups, key=lambda group: group.number), cluster_, messages


async def until(true):
    """Wait for a condition without a notification."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def results_of(groups):
    """Return the results of episodes without durations."""
    return [
        (t.id, t.ended, t.score, [(n.action.ids, n.action.logprobs, n.observation) for n in t.turns])
        for group in groups
        for t in group.trajectories
    ]


def test_workers_and_replicas_play_the_same_episodes(multi_turn):
    local, _, _ = played(multi_turn)
    spread, cluster_, _ = played(multi_turn, cluster={})
    assert results_of(spread) == results_of(local)
    assert any(len(t.turns) > 1 for group in local for t in group.trajectories)
    assert all(worker.works for worker in cluster_.workers)
    assert all(replica.drawn_for for replica in cluster_.replicas)


def test_episode_uses_only_one_replica(multi_turn):
    _, cluster_, _ = played(multi_turn, cluster={})
    one, two = (set(replica.drawn_for) for replica in cluster_.replicas)
    assert one
    assert two
    assert not one & two


def test_dead_worker_loses_no_turn_and_no_group(multi_turn):
    record = Record()

    async def kill(cluster_):
        await until(lambda: len(record.added) >= 6)
        cluster_.workers[0].kill()
        cluster_.workers[1].kill()

    alone, _, _ = played(multi_turn)
    spread, cluster_, messages = played(multi_turn, cluster={}, meanwhile=kill, record=record)
    assert results_of(spread) == results_of(alone)
    assert cluster_.pool.num_reassigned > 0
    assert any("died; other workers continue its groups" in line for line in messages)
    continued = [work for worker in cluster_.workers for work in worker.works if work.played]
    assert continued  # after the recorded turns


def test_dead_replica_receives_all_weights_before_it_samples_again(multi_turn):
    async def kill(cluster_):
        await until(lambda: cluster_.replicas[0].drawn_for)
        cluster_.replicas[0].kill()

    alone, _, _ = played(multi_turn)
    spread, cluster_, _ = played(multi_turn, cluster={}, meanwhile=kill)
    assert results_of(spread) == results_of(alone)
    assert [parcel.base_version for parcel in cluster_.replicas[0].loads] == [None, None]


def test_replica_without_a_version_refuses_a_delta(multi_turn):
    async def main():
        async with HereCluster(multi_turn, workers=1) as cluster_:
            await until(lambda: all(seat.up for seat in cluster_.engine.handles))
            weights = {
                name: torch.nn.Parameter(p.detach() * 1.5) for name, p in multi_turn.policy.model.named_parameters()
            }
            await cluster_.engine.load_weights(weights, 1)
            versions = [(await replica.status()).version for replica in cluster_.replicas]
            parcel = cluster_.replicas[0].loads[-1]
            cluster_.replicas[0].kill()
            with pytest.raises(ActorUnavailable, match="not at version 0"):
                await cluster_.replicas[0].load(parcel, in_flight="drain")
            await until(lambda: cluster_.replicas[0].thing._ready)
            scores = [
                (await replica.score(TokenSequence([5, 6, 7, 8]), start=1)).logprobs for replica in cluster_.replicas
            ]
            return versions, parcel.base_version, scores

    versions, since, scores = asyncio.run(main())
    assert (versions, since) == ([1, 1], 0)
    assert scores[0] == scores[1]


def test_failure_of_all_workers_is_raised(multi_turn):
    async def main():
        async with HereCluster(multi_turn) as cluster_:
            cluster_.pool.patience_seconds = 0.05
            for worker in cluster_.workers:
                worker.kill(back=False)
            actor = multi_turn.policy_actor(cluster_.engine, temperature=1.0)
            collector = cluster_.distribute_collector(multi_turn.build_collector(actor, method=multi_turn.method))
            plan = next(make_plans([multi_turn.source.task(0)], seed=7))
            with pytest.raises(InfrastructureError, match=r"none of 2 environment workers returned within 0\.05 s"):
                await collector.group(plan, multi_turn.strategy)

    asyncio.run(main())


def test_exception_of_a_strategy_in_a_worker_is_raised(multi_turn):
    async def main():
        async with HereCluster(multi_turn) as cluster_:
            actor = multi_turn.policy_actor(cluster_.engine, temperature=1.0)
            collector = cluster_.distribute_collector(multi_turn.build_collector(actor, method=multi_turn.method))
            plan = next(make_plans([multi_turn.source.task(0)], seed=7))

            async def broken(task, roller):
                raise ZeroDivisionError("by a strategy")

            with pytest.raises(ZeroDivisionError, match="by a strategy"):
                await collector.group(plan, broken)
            return cluster_.pool.posts

    assert all(post.used == 0 for post in asyncio.run(main()))


def test_no_worker_has_more_episodes_than_slots(multi_turn):
    running, run = [], []

    async def look(cluster_):
        for _ in range(200):
            running.append(max(post.used for post in cluster_.pool.posts))
            run.append(max([status.running for status in cluster_.pool.last_statuses()], default=0))
            await asyncio.sleep(0.001)

    played(multi_turn, cluster={"places": 4}, meanwhile=look)
    assert 0 < max(run) <= 4
    assert 0 < max(running) < 4 + 4  # a group of four starts with one free slot; its other episodes wait


def test_each_episode_frees_its_slot_when_it_ends(multi_turn, monkeypatch):
    freed, free = [], worker_pool.WorkerPool.free_slot
    monkeypatch.setattr(
        worker_pool.WorkerPool, "free_slot", lambda pool, place: (freed.append(place), free(pool, place))
    )
    groups, cluster_, _ = played(multi_turn, cluster={})
    assert len(freed) == sum(len(group.trajectories) for group in groups)
    assert all(post.used == 0 for post in cluster_.pool.posts)
