"""Game hosts: objects, threads and processes play equally; crashes, hangs and leaks are detected."""

import asyncio
import functools
import os
import time

import pytest

from whetstone.chat import assistant
from whetstone.environments import GameEnvironment, GameObservation
from whetstone.environments.built_in.frozen_lake import FrozenLake, FrozenLakeTasks
from whetstone.environments.hosting import copy_host_counts, workers
from whetstone.errors import EpisodeError, InfrastructureError, TaskError
from whetstone.evaluation.environment_checks import RandomPolicy, play_with_policy


class MisbehavingGame:
    """A game that dies, hangs, raises or leaks on command."""

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


def host(isolation):
    return GameEnvironment(MisbehavingGame, actions="text", isolation=isolation)


@pytest.fixture(autouse=True)
def assert_no_processes_left():
    before = copy_host_counts().open_games
    yield
    assert copy_host_counts().open_games == before


KNOWN = FrozenLakeTasks().task(3)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_game_plays_equally_in_every_host(isolation):
    def make(how):
        return functools.partial(GameEnvironment, functools.partial(FrozenLake, view="around"), isolation=how)

    in_object = asyncio.run(play_with_policy(make("object"), KNOWN, RandomPolicy(1).choose_action, seed=1))
    in_host = asyncio.run(play_with_policy(make(isolation), KNOWN, RandomPolicy(1).choose_action, seed=1))
    assert in_host.transcript == in_object.transcript


def test_worker_process_is_reused_and_differs_from_this_process():
    async def two_episodes():
        seen = []
        for _ in range(2):
            environment = host("process")
            first = await environment.reset(KNOWN, seed=0)
            seen.append(int(first.messages[0].text))
            await environment.close()
        return seen

    one, other = asyncio.run(two_episodes())
    assert one == other != os.getpid()


@pytest.mark.parametrize("isolation", ["object", "thread", "process"])
def test_errors_keep_their_type_and_message(isolation):
    async def error_types():
        environment = host(isolation)
        try:
            with pytest.raises(TaskError, match="no such task; there is: known"):
                await environment.reset(type(KNOWN)("unknown", ""), seed=0)
            await environment.reset(KNOWN, seed=0)
            with pytest.raises((LookupError, RuntimeError), match="what a mess"):
                await environment.step(assistant("raise"))
            return (await environment.step(assistant("on"))).observation.messages[0].text
        finally:
            await environment.close()

    assert asyncio.run(error_types()) == "2"


def test_dying_worker_invalidates_the_episode_and_is_replaced():
    async def dying():
        environment = host("process")
        first = await environment.reset(KNOWN, seed=0)
        with pytest.raises(InfrastructureError, match="died: exit code 3"):
            await environment.step(assistant("die"))
        await environment.close()
        other = host("process")
        second = await other.reset(KNOWN, seed=0)
        await other.close()
        return first.messages[0].text, second.messages[0].text

    one, other = asyncio.run(dying())
    assert one != other


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_hanging_worker_is_abandoned_at_the_deadline(isolation):
    before = copy_host_counts()

    async def hanging():
        environment = host(isolation)
        first = await environment.reset(KNOWN, seed=0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await environment.step(assistant("hang"))
        await environment.close()
        return int(first.messages[0].text)

    process = asyncio.run(hanging())
    after = copy_host_counts()
    if isolation == "process":
        assert after.killed == before.killed + 1
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    else:
        assert after.abandoned == before.abandoned + 1


def test_unpicklable_game_is_refused():
    async def build():
        environment = host("process")
        await environment.reset(KNOWN, seed=0)
        try:
            with pytest.raises((TypeError, RuntimeError), match="cannot be pickled"):
                await environment.step(assistant("unsendable"))
        finally:
            await environment.close()

    async def unpicklable():
        environment = GameEnvironment(lambda: MisbehavingGame(), isolation="process")
        try:
            await environment.reset(KNOWN, seed=0)
        finally:
            await environment.close()

    asyncio.run(build())
    with pytest.raises(InfrastructureError, match="define it in a module"):
        asyncio.run(unpicklable())


@pytest.mark.slow
def test_workers_are_recycled_and_reaped(monkeypatch):
    monkeypatch.setattr(workers, "EPISODES_OF_A_WORKER", 2)

    async def episodes(count):
        seen = []
        for _ in range(count):
            environment = host("process")
            seen.append((await environment.reset(KNOWN, seed=0)).messages[0].text)
            await environment.close()
        return seen

    workers._end_all()
    before = copy_host_counts()
    assert before.processes == 0
    seen = asyncio.run(episodes(4))
    assert seen[0] == seen[1] != seen[2] == seen[3]
    assert copy_host_counts().recycled == before.recycled + 2
    asyncio.run(episodes(1))
    assert copy_host_counts().processes == 1
    monkeypatch.setattr(workers, "IDLE_SECONDS", 0.0)
    workers._reap()
    assert copy_host_counts().processes == 0


@pytest.mark.parametrize("isolation", ["object", "thread", "process"])
def test_steps_out_of_order_are_episode_errors(isolation):
    async def out_of_order():
        environment = GameEnvironment(FrozenLake, actions="text", isolation=isolation)
        with pytest.raises(EpisodeError, match="before the first reset"):
            await environment.step(assistant("up"))
        await environment.reset(KNOWN, seed=0)
        while (await environment.step(assistant("up"))).ended is None:
            pass
        with pytest.raises(EpisodeError, match="after the end"):
            await environment.step(assistant("up"))
        await environment.close()
        await environment.close()
        with pytest.raises(EpisodeError, match="closed"):
            await environment.step(assistant("up"))

    asyncio.run(out_of_order())


def test_number_of_workers_is_bounded_and_waiting_episodes_run_in_turn(monkeypatch):
    monkeypatch.setattr(workers, "WORKERS", 2)
    workers._end_all()

    async def episode():
        environment = host("process")
        first = await environment.reset(KNOWN, seed=0)
        await asyncio.sleep(0.02)
        await environment.close()
        return first.messages[0].text

    async def six():
        return await asyncio.gather(*(episode() for _ in range(6)))

    assert len(set(asyncio.run(six()))) == 2

    async def cancel_waiting():
        """Cancel a waiting episode; it occupies no slot."""
        hosts = [host("process") for _ in range(2)]
        for environment in hosts:
            await environment.reset(KNOWN, seed=0)
        late = host("process")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await late.reset(KNOWN, seed=0)
        await late.close()
        for environment in hosts:
            await environment.close()
        return await asyncio.wait_for(episode(), 20)

    assert asyncio.run(cancel_waiting())
