"""A game plays the same in an object, a thread and a process; what dies, hangs or leaks is noticed."""

import asyncio
import functools
import os
import time

import pytest

from whetstone.chat import assistant
from whetstone.environments import GameEnvironment, GameObservation
from whetstone.environments.hosting import host_counts, workers
from whetstone.environments.native.frozen_lake import FrozenLake, FrozenLakeTasks
from whetstone.errors import EpisodeError, InfrastructureError, TaskError
from whetstone.evaluation.contract import RandomPolicy, play


class Misbehaving:
    """Does what the command says."""

    def begin(self, task, seed):
        self.said = 0
        if task.id == "unknown":
            raise TaskError("no such task; there is: known")
        return GameObservation(f"{os.getpid()}")

    def act(self, command):
        self.said += 1
        if command == "die":
            os._exit(3)
        if command == "hang":
            time.sleep(60)
        if command == "raise":
            raise LookupError("what a mess")
        if command == "unsendable":
            return lambda: None
        return GameObservation(f"{self.said}")

    def verdict(self):
        return {"success": False}

    def close(self):
        pass


def of(isolation):
    return GameEnvironment(Misbehaving, actions="text", isolation=isolation)


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = host_counts().open_games
    yield
    assert host_counts().open_games == before


KNOWN = FrozenLakeTasks().task(3)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_game_plays_the_same_wherever_it_runs(isolation):
    def make(how):
        return functools.partial(GameEnvironment, functools.partial(FrozenLake, view="around"), isolation=how)

    here = asyncio.run(play(make("object"), KNOWN, RandomPolicy(1).action, seed=1))
    there = asyncio.run(play(make(isolation), KNOWN, RandomPolicy(1).action, seed=1))
    assert there.transcript == here.transcript


def test_a_process_is_used_again_and_is_another_one_than_ours():
    async def two_episodes():
        seen = []
        for _ in range(2):
            environment = of("process")
            first = await environment.reset(KNOWN, seed=0)
            seen.append(int(first.messages[0].text))
            await environment.close()
        return seen

    one, other = asyncio.run(two_episodes())
    assert one == other != os.getpid()


@pytest.mark.parametrize("isolation", ["object", "thread", "process"])
def test_errors_keep_their_kind_and_text(isolation):
    async def told():
        environment = of(isolation)
        try:
            with pytest.raises(TaskError, match="no such task; there is: known"):
                await environment.reset(type(KNOWN)("unknown", ""), seed=0)
            await environment.reset(KNOWN, seed=0)
            with pytest.raises((LookupError, RuntimeError), match="what a mess"):
                await environment.step(assistant("raise"))
            return (await environment.step(assistant("on"))).observation.messages[0].text
        finally:
            await environment.close()

    assert asyncio.run(told()) == "2"


def test_a_worker_that_dies_makes_the_episode_invalid_and_the_next_has_a_new_one():
    async def dying():
        environment = of("process")
        first = await environment.reset(KNOWN, seed=0)
        with pytest.raises(InfrastructureError, match="died: exit code 3"):
            await environment.step(assistant("die"))
        await environment.close()
        other = of("process")
        second = await other.reset(KNOWN, seed=0)
        await other.close()
        return first.messages[0].text, second.messages[0].text

    one, other = asyncio.run(dying())
    assert one != other


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_hang_is_left_at_the_deadline_and_what_hangs_is_never_used_again(isolation):
    before = host_counts()

    async def hanging():
        environment = of(isolation)
        first = await environment.reset(KNOWN, seed=0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await environment.step(assistant("hang"))
        await environment.close()
        return int(first.messages[0].text)

    process = asyncio.run(hanging())
    after = host_counts()
    if isolation == "process":
        assert after.killed == before.killed + 1
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    else:
        assert after.abandoned == before.abandoned + 1


def test_what_cannot_be_sent_is_said():
    async def asked():
        environment = of("process")
        await environment.reset(KNOWN, seed=0)
        try:
            with pytest.raises((TypeError, RuntimeError), match="cannot be sent"):
                await environment.step(assistant("unsendable"))
        finally:
            await environment.close()

    async def made_of_what_has_no_name():
        environment = GameEnvironment(lambda: Misbehaving(), isolation="process")
        try:
            await environment.reset(KNOWN, seed=0)
        finally:
            await environment.close()

    asyncio.run(asked())
    with pytest.raises(InfrastructureError, match="define it in a module"):
        asyncio.run(made_of_what_has_no_name())


@pytest.mark.slow
def test_workers_are_recycled_and_reaped(monkeypatch):
    monkeypatch.setattr(workers, "EPISODES_OF_A_WORKER", 2)

    async def episodes(count):
        seen = []
        for _ in range(count):
            environment = of("process")
            seen.append((await environment.reset(KNOWN, seed=0)).messages[0].text)
            await environment.close()
        return seen

    workers._end_all()
    before = host_counts()
    assert before.processes == 0
    seen = asyncio.run(episodes(4))
    assert seen[0] == seen[1] != seen[2] == seen[3]
    assert host_counts().recycled == before.recycled + 2
    asyncio.run(episodes(1))
    assert host_counts().processes == 1
    monkeypatch.setattr(workers, "IDLE_SECONDS", 0.0)
    workers._reap()
    assert host_counts().processes == 0


@pytest.mark.parametrize("isolation", ["object", "thread", "process"])
def test_steps_out_of_order_are_errors_of_their_own_kind(isolation):
    async def out_of_order():
        environment = GameEnvironment(FrozenLake, actions="text", isolation=isolation)
        with pytest.raises(EpisodeError, match="before the first reset"):
            await environment.step(assistant("up"))
        await environment.reset(KNOWN, seed=0)
        while (await environment.step(assistant("up"))).ended is None:
            pass
        with pytest.raises(EpisodeError, match="behind the end"):
            await environment.step(assistant("up"))
        await environment.close()
        await environment.close()
        with pytest.raises(EpisodeError, match="closed"):
            await environment.step(assistant("up"))

    asyncio.run(out_of_order())


def test_no_more_workers_than_may_be_are_at_work_and_who_waits_gets_his_turn(monkeypatch):
    monkeypatch.setattr(workers, "WORKERS", 2)
    workers._end_all()

    async def episode():
        environment = of("process")
        first = await environment.reset(KNOWN, seed=0)
        await asyncio.sleep(0.02)
        await environment.close()
        return first.messages[0].text

    async def six():
        return await asyncio.gather(*(episode() for _ in range(6)))

    assert len(set(asyncio.run(six()))) == 2

    async def given_up():
        """Who gives up while waiting leaves no place taken."""
        held = [of("process") for _ in range(2)]
        for environment in held:
            await environment.reset(KNOWN, seed=0)
        late = of("process")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await late.reset(KNOWN, seed=0)
        await late.close()
        for environment in held:
            await environment.close()
        return await asyncio.wait_for(episode(), 20)

    assert asyncio.run(given_up())
