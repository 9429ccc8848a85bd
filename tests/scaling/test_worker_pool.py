"""Who is given the next group, while workers join, die and come back."""

import asyncio

import pytest

from whetstone.errors import InfrastructureError
from whetstone.recipe import load_recipe
from whetstone.scaling import worker_pool
from whetstone.scaling.protocol import Gone, WorkerStatus
from whetstone.scaling.worker_pool import WorkerPool

STATUS = WorkerStatus(0, 0, 0.0, 0, 0, (), 0, {}, 0.0, "node", 1)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch):
    monkeypatch.setattr(worker_pool, "LOOK_SECONDS", 0.001)


class Fake:
    """`gone` can be set."""

    def __init__(self, name, *, gone=False):
        self.name, self.gone = name, gone

    async def status(self):
        if self.gone:
            raise Gone("not there")
        return STATUS


def pool_of(*workers, late=(), said=None, **more):
    say = (said if said is not None else []).append
    return WorkerPool(workers, late=late, places=4, patience_seconds=0.05, say=say, **more)


async def until(true):
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def test_one_that_joins_is_given_groups_and_one_that_leaves_none():
    said = []

    async def main():
        late = Fake("worker 1", gone=True)
        pool = pool_of(Fake("worker 0"), late=[late], said=said)
        pool.start()
        first = [(await pool.place(2)).worker.name for _ in range(2)]
        assert not pool.has_room
        late.gone = False
        await until(lambda: pool.count == 2)
        second = [(await pool.place(2)).worker.name for _ in range(2)]
        late.gone = True
        await until(lambda: pool.count == 1)
        late.gone = False
        await until(lambda: pool.count == 2)
        await pool.close()
        return first, second

    assert asyncio.run(main()) == (["worker 0"] * 2, ["worker 1"] * 2)
    assert [line.split(" (")[0].split(";")[0] for line in said] == [
        "worker 1 joined",
        "worker 1 died",
        "worker 1 is back",
    ]


def test_those_who_join_make_no_more_episodes_run_at_once_than_the_recipe_says():
    async def main():
        pool = pool_of(Fake("worker 0"), Fake("worker 1"), late=[Fake("worker 2")], total=8)
        pool.start()
        await until(lambda: pool.count == 3)
        places = [await pool.place(2) for _ in range(4)]
        assert not pool.has_room
        waiting = asyncio.ensure_future(pool.place(2))
        await asyncio.sleep(0.005)
        assert not waiting.done()
        pool.give_back(places[0])
        await waiting
        await pool.close()
        return sorted(place.worker.name for place in places)

    assert asyncio.run(main()) == ["worker 0", "worker 0", "worker 1", "worker 2"]


def test_one_that_never_came_is_not_counted_among_those_that_are_gone():
    async def main():
        pool = pool_of(Fake("worker 0", gone=True), late=[Fake("worker 1", gone=True)])
        pool.start()
        await until(lambda: pool.count == 0)
        with pytest.raises(InfrastructureError, match="none of 1 environment workers came back"):
            await pool.place(1)
        await pool.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("overrides", "said"),
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
def test_what_cannot_grow_is_refused(overrides, said):
    with pytest.raises(Exception, match=said):
        load_recipe("demo", overrides)


def test_places_of_episodes_that_are_over_are_given_to_the_next_group_before_the_slowest_is():
    async def main():
        pool = pool_of(Fake("worker 0"))
        first, second = await pool.place(2), await pool.place(2)
        full = pool.has_room
        pool.free(first)
        room = pool.has_room
        third = await pool.place(2)
        over_full = pool.has_room
        for _ in range(3):  # more than there were: a group that plays some of its episodes one after the other
            pool.free(second)
        still = pool.posts[0].used
        for place in (first, second, third):
            pool.give_back(place)
        return full, room, over_full, still, pool.posts[0].used

    # first has one left, second the one it keeps, third both
    assert asyncio.run(main()) == (False, True, False, 4, 0)


def test_all_workers_together_play_no_more_than_their_total():
    async def main():
        pool = pool_of(Fake("worker 0"), Fake("worker 1"), total=4)
        first = await pool.place(3)
        waiting = asyncio.ensure_future(pool.place(3))
        await asyncio.sleep(0.005)
        early = waiting.done()
        pool.free(first)
        pool.free(first)
        await asyncio.wait_for(waiting, 1)
        return early, sum(post.used for post in pool.posts)

    assert asyncio.run(main()) == (False, 4)
