"""Groups are assigned to workers with free slots; groups of a dead worker are continued by another."""

import asyncio
from dataclasses import replace

import pytest

from whetstone.chat import user
from whetstone.errors import InfrastructureError, PromptTooLong
from whetstone.rollout import Collector, EpisodeLimits, GroupPlan
from whetstone.scaling import worker_pool
from whetstone.scaling.distributed_collector import DistributedCollector
from whetstone.scaling.protocol import ActorUnavailable, EpisodeReset, Finished, TurnFinished, WorkerStatus
from whetstone.scaling.worker_pool import WorkerPool
from whetstone.trajectory import Author, EndReason, Group, Score, Task, Tokens, Trajectory, Turn

NOTHING = Tokens.from_ids((), Author.ENVIRONMENT)
TURN = Turn(NOTHING, NOTHING, user("so"))


@pytest.fixture(autouse=True)
def _short_polling(monkeypatch):
    monkeypatch.setattr(worker_pool, "LOOK_SECONDS", 0.005)


class FakeWorker:
    """A worker; `ends` sets the outcome of each group by its number."""

    def __init__(self, name, ends=None):
        self.name, self.ends, self.works, self.gone = name, ends or {}, [], False
        self.let = asyncio.Event()
        self.let.set()

    async def play(self, work):
        if self.gone:
            raise ActorUnavailable("dead")
        self.works.append(work)
        number = work.plan.number
        episode = f"{work.plan.name}{work.plan.task.id}#0"
        yield [TurnFinished(episode, TURN)]
        await asyncio.sleep(0.002)
        await self.let.wait()
        match self.ends.get(number, "well"):
            case "dies":
                self.gone = True
                raise ActorUnavailable("died")
            case "drops":
                yield [EpisodeReset(episode)]
            case Exception() as failure:
                yield [Finished(None, failure)]
                return
        trajectory = Trajectory(episode, work.plan.task.id, (), (TURN,), EndReason.TERMINATED, score=Score(1.0))
        yield [Finished(Group(work.plan.task, (trajectory,), number))]

    async def status(self):
        if self.gone:
            raise ActorUnavailable("dead")
        return WorkerStatus(len(self.works), 0, 0.0, 0, 0, (("e", "the engine", 1.0),), 0, {}, 0.0, "n", 1)


class Record:
    """Record turns in memory; see `GroupRecord`."""

    def __init__(self):
        self.turns = {}

    def played(self, episode):
        return tuple(self.turns.get(episode, ()))

    def begun_episodes(self, name):
        return {episode: tuple(turns) for episode, turns in self.turns.items() if episode.startswith(name)}

    def add(self, episode, turn):
        self.turns.setdefault(episode, []).append(turn)

    def drop(self, episode):
        self.turns.pop(episode, None)


async def strategy(task, roller):
    raise AssertionError("workers have it")


def plan(number):
    return GroupPlan(Task(f"t{number}", "?"), 0, number, f"g{number}/")


def spread_over(*workers, places=1, patience=5.0, record=None, say=lambda line: None):
    pool = WorkerPool(workers, places=places, patience_seconds=patience, notify=say)
    collector = DistributedCollector(
        environment=None,
        actor=None,
        chat=None,
        reward=None,
        limits=EpisodeLimits(1, 100, 1.0),
        max_in_flight=8,
        record=record,
        pool=pool,
        recipe_strategy=strategy,
        temperature=1.0,
        at_evaluation=False,
    )
    return pool, collector


def played(numbers, *workers, **how):
    async def main():
        pool, collector = spread_over(*workers, **how)
        pool.start()
        groups = [group async for group in collector.groups([plan(n) for n in numbers], strategy)]
        await pool.close()
        return sorted(group.number for group in groups), pool, collector

    return asyncio.run(main())


def test_every_group_is_played_once_and_all_workers_are_used():
    one, two = FakeWorker("one"), FakeWorker("two")
    numbers, pool, collector = played(range(6), one, two)
    assert numbers == list(range(6))
    assert sorted(work.plan.number for worker in (one, two) for work in worker.works) == list(range(6))
    assert one.works
    assert two.works
    assert all(post.used == 0 for post in pool.posts)
    assert collector.status().episodes == 6
    assert [work.strategy for work in one.works] == [None] * len(one.works)


def test_group_of_a_dead_worker_is_continued_by_another_after_its_turns():
    one, two, record, messages = FakeWorker("one", {0: "dies", 1: "dies"}), FakeWorker("two"), Record(), []
    numbers, pool, collector = played(range(4), one, two, record=record, say=messages.append)
    assert numbers == [0, 1, 2, 3]
    (lost,) = {work.plan.number for work in one.works} & {work.plan.number for work in two.works}
    continued = next(work for work in two.works if work.plan.number == lost)
    assert continued.played == {f"g{lost}/t{lost}#0": (TURN,)}
    assert (pool.num_reassigned, collector.status().retried, one.gone) == (1, 1, True)
    assert messages == ["one died; other workers continue its groups after the recorded turns"]


def test_turns_are_recorded_as_they_finish_and_dropped_if_the_episode_restarts():
    record = Record()
    played([0, 1], FakeWorker("one", {0: "drops"}), record=record)
    assert list(record.turns) == ["g1/t1#0"]


def test_without_a_record_turns_are_not_requested():
    one = FakeWorker("one")
    played([0], one)
    assert [work.recorded for work in one.works] == [False]


def test_exception_of_a_group_in_a_worker_is_raised_by_the_collector():
    with pytest.raises(ZeroDivisionError, match="by a strategy"):
        played([0], FakeWorker("one", {0: ZeroDivisionError("by a strategy")}))
    _, _, collector = played([0, 1], FakeWorker("one", {0: PromptTooLong("no room")}))
    assert collector.too_long == 1


def test_without_workers_the_collection_waits_and_then_fails():
    one = FakeWorker("one")
    one.gone = True
    with pytest.raises(InfrastructureError, match=r"none of 1 environment workers returned within 0\.05 s"):
        played([0], one, patience=0.05)


def test_returned_worker_gets_groups_again():
    async def main():
        one, messages = FakeWorker("one"), []
        pool, collector = spread_over(one, say=messages.append)
        pool.start()
        one.gone = True
        waiting = asyncio.ensure_future(collector.group(plan(0), strategy))
        await asyncio.sleep(0.02)
        before = waiting.done()
        one.gone = False
        group = await waiting
        await pool.close()
        return before, group.number, messages

    before, number, messages = asyncio.run(main())
    assert (before, number) == (False, 0)
    assert messages[-1] == "one is back (n, process 1)"


def test_number_of_started_groups_is_bounded_by_the_slots():
    async def main():
        one = FakeWorker("one")
        one.let.clear()
        pool, collector = spread_over(one, places=2)
        pool.start()
        handed = []

        async def plans():
            for number in range(6):
                handed.append(number)
                yield plan(number)

        async def all_of_them():
            return [outcome async for outcome in collector.outcomes(plans(), strategy)]

        running = asyncio.ensure_future(all_of_them())
        await asyncio.sleep(0.05)
        begun, requested, waits = len(one.works), len(handed), collector.waits()
        one.let.set()
        outcomes = await running
        await pool.close()
        return begun, requested, waits, len(outcomes)

    begun, requested, waits, outcomes = asyncio.run(main())
    assert (begun, outcomes) == (2, 6)
    assert requested <= 4
    assert ("e", "the engine", 1.0) in waits


def test_cancelled_collection_frees_all_slots():
    async def main():
        one = FakeWorker("one")
        one.let.clear()
        pool, collector = spread_over(one)
        task = asyncio.ensure_future(collector.group(plan(0), strategy))
        await asyncio.sleep(0.01)
        used = pool.posts[0].used
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return used, pool.posts[0].used

    assert asyncio.run(main()) == (1, 0)


def test_it_has_all_fields_of_a_collector():
    _, collector = spread_over(FakeWorker("one"))
    plain = {name for name, field in Collector.__dataclass_fields__.items() if field.init}
    assert plain <= {name for name, field in type(collector).__dataclass_fields__.items() if field.init}
    assert replace(collector, max_in_flight=3).max_in_flight == 3
