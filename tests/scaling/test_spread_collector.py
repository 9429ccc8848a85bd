"""Groups find a worker with room; where it dies another plays them on, and nobody else is told."""

import asyncio
from dataclasses import replace

import pytest

from whetstone.chat import user
from whetstone.errors import InfrastructureError, PromptTooLong
from whetstone.rollout import Collector, Limits, Plan
from whetstone.scaling import worker_pool
from whetstone.scaling.protocol import Dropped, Finished, Gone, TurnOver, WorkerStatus
from whetstone.scaling.spread_collector import SpreadCollector
from whetstone.scaling.worker_pool import WorkerPool
from whetstone.trajectory import Author, EndReason, Group, Score, Task, Tokens, Trajectory, Turn

NOTHING = Tokens.written((), Author.ENVIRONMENT)
TURN = Turn(NOTHING, NOTHING, user("so"))


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch):
    monkeypatch.setattr(worker_pool, "LOOK_SECONDS", 0.005)


class Fake:
    """A worker; `ends` says of each group it is given what becomes of it, by its number."""

    def __init__(self, name, ends=None):
        self.name, self.ends, self.works, self.gone = name, ends or {}, [], False
        self.let = asyncio.Event()
        self.let.set()

    async def play(self, work):
        if self.gone:
            raise Gone("dead")
        self.works.append(work)
        number = work.plan.number
        episode = f"{work.plan.name}{work.plan.task.id}#0"
        yield [TurnOver(episode, TURN)]
        await asyncio.sleep(0.002)
        await self.let.wait()
        match self.ends.get(number, "well"):
            case "dies":
                self.gone = True
                raise Gone("died")
            case "drops":
                yield [Dropped(episode)]
            case Exception() as failure:
                yield [Finished(None, failure)]
                return
        trajectory = Trajectory(episode, work.plan.task.id, (), (TURN,), EndReason.TERMINATED, score=Score(1.0))
        yield [Finished(Group(work.plan.task, (trajectory,), number))]

    async def status(self):
        if self.gone:
            raise Gone("dead")
        return WorkerStatus(len(self.works), 0, 0.0, 0, 0, (("e", "the engine", 1.0),), 0, {}, 0.0, "n", 1)


class Record:
    """See `GroupRecord`."""

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
    return Plan(Task(f"t{number}", "?"), 0, number, f"g{number}/")


def spread_over(*workers, places=1, patience=5.0, record=None, say=lambda line: None):
    pool = WorkerPool(workers, places=places, patience_seconds=patience, say=say)
    collector = SpreadCollector(
        environment=None,
        actor=None,
        chat=None,
        reward=None,
        limits=Limits(1, 100, 1.0),
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


def test_every_group_is_played_once_and_by_all_workers():
    one, two = Fake("one"), Fake("two")
    numbers, pool, collector = played(range(6), one, two)
    assert numbers == list(range(6))
    assert sorted(work.plan.number for worker in (one, two) for work in worker.works) == list(range(6))
    assert one.works
    assert two.works
    assert all(post.used == 0 for post in pool.posts)
    assert collector.status().episodes == 6
    assert [work.strategy for work in one.works] == [None] * len(one.works)


def test_a_group_whose_worker_dies_is_played_by_another_behind_its_turns():
    one, two, record, said = Fake("one", {0: "dies", 1: "dies"}), Fake("two"), Record(), []
    numbers, pool, collector = played(range(4), one, two, record=record, say=said.append)
    assert numbers == [0, 1, 2, 3]
    (lost,) = {work.plan.number for work in one.works} & {work.plan.number for work in two.works}
    again = next(work for work in two.works if work.plan.number == lost)
    assert again.played == {f"g{lost}/t{lost}#0": (TURN,)}
    assert (pool.taken_back, collector.status().retried, one.gone) == (1, 1, True)
    assert said == ["one died; its groups are played by others, behind the turns on record"]


def test_turns_are_on_record_as_they_come_and_gone_where_the_episode_begins_again():
    record = Record()
    played([0, 1], Fake("one", {0: "drops"}), record=record)
    assert list(record.turns) == ["g1/t1#0"]


def test_without_a_record_turns_are_not_asked_for():
    one = Fake("one")
    played([0], one)
    assert [work.recorded for work in one.works] == [False]


def test_what_ended_a_group_in_a_worker_is_what_ends_it_here():
    with pytest.raises(ZeroDivisionError, match="by a strategy"):
        played([0], Fake("one", {0: ZeroDivisionError("by a strategy")}))
    _, _, collector = played([0, 1], Fake("one", {0: PromptTooLong("no room")}))
    assert collector.too_long == 1


def test_where_all_workers_are_gone_it_is_waited_for_one_and_then_said():
    one = Fake("one")
    one.gone = True
    with pytest.raises(InfrastructureError, match=r"none of 1 environment workers came back within 0\.05 s"):
        played([0], one, patience=0.05)


def test_a_worker_that_is_back_is_given_groups_again():
    async def main():
        one, said = Fake("one"), []
        pool, collector = spread_over(one, say=said.append)
        pool.start()
        one.gone = True
        waiting = asyncio.ensure_future(collector.group(plan(0), strategy))
        await asyncio.sleep(0.02)
        before = waiting.done()
        one.gone = False
        group = await waiting
        await pool.close()
        return before, group.number, said

    before, number, said = asyncio.run(main())
    assert (before, number) == (False, 0)
    assert said[-1] == "one is back (n, process 1)"


def test_no_more_groups_begin_than_there_are_places_and_one_waits():
    async def main():
        one = Fake("one")
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
        begun, asked, waits = len(one.works), len(handed), collector.waits()
        one.let.set()
        outcomes = await running
        await pool.close()
        return begun, asked, waits, len(outcomes)

    begun, asked, waits, outcomes = asyncio.run(main())
    assert (begun, outcomes) == (2, 6)
    assert asked <= 4
    assert ("e", "the engine", 1.0) in waits


def test_a_cancelled_collection_leaves_no_place_taken():
    async def main():
        one = Fake("one")
        one.let.clear()
        pool, collector = spread_over(one)
        task = asyncio.ensure_future(collector.group(plan(0), strategy))
        await asyncio.sleep(0.01)
        used = pool.posts[0].used
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return used, pool.posts[0].used

    assert asyncio.run(main()) == (1, 0)


def test_it_takes_everything_a_collector_is_made_of():
    _, collector = spread_over(Fake("one"))
    plain = {name for name, field in Collector.__dataclass_fields__.items() if field.init}
    assert plain <= {name for name, field in type(collector).__dataclass_fields__.items() if field.init}
    assert replace(collector, max_in_flight=3).max_in_flight == 3
