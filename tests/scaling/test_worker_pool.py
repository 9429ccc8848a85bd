"""Assignment of groups while workers join, die and return."""

import asyncio

import pytest

from whetstone.errors import InfrastructureError
from whetstone.recipe import load_recipe
from whetstone.scaling import worker_pool
from whetstone.scaling.protocol import ActorUnavailable, WorkerStatus
from whetstone.scaling.worker_pool import WorkerPool

STATUS = WorkerStatus(0, 0, 0.0, 0, 0, (), 0, {}, 0.0, "node", 1)


@pytest.fixture(autouse=True)
def _short_polling(monkeypatch):
    monkeypatch.setattr(worker_pool, "LOOK_SECONDS", 0.001)


class FakeWorker:
    """A worker whose `is_dead` can be set."""

    def __init__(self, name, *, is_dead=False):
        self.name, self.is_dead = name, is_dead

    async def status(self):
        if self.is_dead:
            raise ActorUnavailable("not there")
        return STATUS


def pool_of(*workers, late=(), messages=None, **more):
    say = (messages if messages is not None else []).append
    return WorkerPool(workers, late=late, places=4, patience_seconds=0.05, notify=say, **more)


async def until(true):
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def test_joined_worker_gets_groups_and_a_dead_one_none():
    messages = []

    async def main():
        late = FakeWorker("worker 1", is_dead=True)
        pool = pool_of(FakeWorker("worker 0"), late=[late], messages=messages)
        pool.start()
        first = [(await pool.reserve_slots(2)).worker.name for _ in range(2)]
        assert not pool.has_room
        late.is_dead = False
        await until(lambda: pool.count == 2)
        second = [(await pool.reserve_slots(2)).worker.name for _ in range(2)]
        late.is_dead = True
        await until(lambda: pool.count == 1)
        late.is_dead = False
        await until(lambda: pool.count == 2)
        await pool.close()
        return first, second

    assert asyncio.run(main()) == (["worker 0"] * 2, ["worker 1"] * 2)
    assert [line.split(" (")[0].split(";")[0] for line in messages] == [
        "worker 1 joined",
        "worker 1 died",
        "worker 1 is back",
    ]


def test_joined_workers_keep_the_maximum_number_of_episodes_of_the_recipe():
    async def main():
        pool = pool_of(FakeWorker("worker 0"), FakeWorker("worker 1"), late=[FakeWorker("worker 2")], total=8)
        pool.start()
        await until(lambda: pool.count == 3)
        places = [await pool.reserve_slots(2) for _ in range(4)]
        assert not pool.has_room
        waiting = asyncio.ensure_future(pool.reserve_slots(2))
        await asyncio.sleep(0.005)
        assert not waiting.done()
        pool.release(places[0])
        await waiting
        await pool.close()
        return sorted(place.worker.name for place in places)

    assert asyncio.run(main()) == ["worker 0", "worker 0", "worker 1", "worker 2"]


def test_worker_that_never_joined_is_not_counted_as_dead():
    async def main():
        pool = pool_of(FakeWorker("worker 0", is_dead=True), late=[FakeWorker("worker 1", is_dead=True)])
        pool.start()
        await until(lambda: pool.count == 0)
        with pytest.raises(InfrastructureError, match="none of 1 environment workers returned"):
            await pool.reserve_slots(1)
        await pool.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["scale=local-ray", "scale.max_environment_workers=4"], "only a cluster .`ray`. grows"),
        (["scale=ray", "scale.max_environment_workers=2"], "must be greater than scale.environment_workers .2., got 2"),
        (
            [
                "scale=ray",
                "engine={name: vllm, address: 'http://x'}",
                "scale.engine_addresses=['http://a']",
                "scale.max_engine_replicas=2",
            ],
            "servers at scale.engine_addresses cannot be started later",
        ),
    ],
)
def test_settings_that_cannot_grow_are_refused(overrides, message):
    with pytest.raises(Exception, match=message):
        load_recipe("demo", overrides)


def test_slots_of_finished_episodes_are_assigned_before_the_slowest_ends():
    async def main():
        pool = pool_of(FakeWorker("worker 0"))
        first, second = await pool.reserve_slots(2), await pool.reserve_slots(2)
        full = pool.has_room
        pool.free_slot(first)
        room = pool.has_room
        third = await pool.reserve_slots(2)
        over_full = pool.has_room
        for _ in range(3):  # more than slots: a group plays some of its episodes sequentially
            pool.free_slot(second)
        still = pool.posts[0].used
        for place in (first, second, third):
            pool.release(place)
        return full, room, over_full, still, pool.posts[0].used

    # first has one left, second the reserved one, third both
    assert asyncio.run(main()) == (False, True, False, 4, 0)


def test_all_workers_together_play_at_most_the_total():
    async def main():
        pool = pool_of(FakeWorker("worker 0"), FakeWorker("worker 1"), total=4)
        first = await pool.reserve_slots(3)
        waiting = asyncio.ensure_future(pool.reserve_slots(3))
        await asyncio.sleep(0.005)
        early = waiting.done()
        pool.free_slot(first)
        pool.free_slot(first)
        await asyncio.wait_for(waiting, 1)
        return early, sum(post.used for post in pool.posts)

    assert asyncio.run(main()) == (False, 4)
