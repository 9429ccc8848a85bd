"""Several engines look like one: an episode stays where its keys are, and a dead replica takes nobody with it."""

import asyncio

import pytest

from whetstone.errors import InfrastructureError
from whetstone.inference import EngineStatistics, GenerateRequest, Generation, Sampling
from whetstone.inference.protocol import EngineAbilities
from whetstone.scaling import replicated_engine
from whetstone.scaling.protocol import Drawn, Gone, ReplicaStatus
from whetstone.scaling.replicated_engine import ReplicatedEngine
from whetstone.trajectory import TokenSequence

ANSWER = Generation((1,), (-0.5,), (0.1,), (3,), "stop")


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch):
    monkeypatch.setattr(replicated_engine, "LOOK_SECONDS", 0.005)


class Fake:
    """Answers when it is let, with how many ask it; `ready` and `gone` can be set."""

    def __init__(self, name):
        self.name, self.ready, self.gone, self.asked, self.forgot = name, True, False, [], []
        self.let = asyncio.Event()
        self.let.set()

    async def generate(self, request):
        self.asked.append(request.episode)
        await self.let.wait()
        if self.gone:
            raise Gone("dead")
        return Drawn(ANSWER, 0)

    async def status(self):
        if self.gone:
            raise Gone("dead")
        return ReplicaStatus(self.ready, 3, EngineStatistics(), EngineAbilities(), 0, "n", 1)

    def forget(self, episode):
        self.forgot.append(episode)


def engine_of(*replicas, patience=5.0, routing="prefix"):
    return ReplicatedEngine(replicas, abilities=EngineAbilities(), patience_seconds=patience, routing=routing)


def ask(engine, episode, prompt=(1,)):
    return asyncio.ensure_future(engine.generate(GenerateRequest(TokenSequence(prompt), Sampling(4), episode)))


def test_an_episode_stays_with_its_replica_and_new_ones_go_where_the_least_is_asked():
    async def main():
        one, two = Fake("one"), Fake("two")
        engine = engine_of(one, two)
        for episode in ("a", "b", "a", "c", "b", "d", "a"):
            await ask(engine, episode)
        engine.forget("a")
        await engine.close()
        return one, two

    one, two = asyncio.run(main())
    assert {*one.asked} == {"a", "c"}
    assert {*two.asked} == {"b", "d"}
    assert (one.forgot, two.forgot) == (["a"], [])


def asked_at_once(prompts, **options):
    """Which episodes each of two replicas is asked for, where nothing is answered before all have asked."""

    async def main():
        one, two = Fake("one"), Fake("two")
        engine = engine_of(one, two, **options)
        one.let.clear()
        two.let.clear()
        waiting = []
        for episode, prompt in prompts:
            waiting.append(ask(engine, episode, prompt))
            await asyncio.sleep(0)
        one.let.set()
        two.let.set()
        await asyncio.gather(*waiting)
        await engine.close()
        return one.asked, two.asked

    return asyncio.run(main())


def test_siblings_go_where_their_beginning_is_until_waiting_there_costs_more():
    one, two = [7] * 160, [8] * 160
    siblings = [("a0", one), ("b0", two), ("a1", one), ("b1", two), ("a2", one), ("b2", two)]
    assert asked_at_once(siblings) == (["a0", "a1", "a2"], ["b0", "b1", "b2"])
    # 160 tokens are worth a queue that is longer by two and a half requests
    assert asked_at_once([(f"a{k}", one) for k in range(4)]) == (["a0", "a1", "a2"], ["a3"])


def test_a_long_beginning_that_all_share_does_not_keep_them_in_one_replica():
    async def main():
        one, two = Fake("one"), Fake("two")
        engine = engine_of(one, two)
        shared = [7] * 1024
        for k in range(40):  # all wait for a tool by the time the next begins
            await ask(engine, f"e{k}", [*shared, *[k] * 32])
        await engine.close()
        return len(one.asked), len(two.asked)

    # sixteen more episodes cost what computing it once does; from there both have it, and share what comes
    assert asyncio.run(main()) == (20, 20)


def test_a_fork_goes_where_its_parent_is():
    async def main():
        one, two = Fake("one"), Fake("two")
        engine = engine_of(one, two)
        long = [7] * 640
        await ask(engine, "parent", long[:64])
        await ask(engine, "other", [8] * 64)
        await ask(engine, "parent", long)
        await ask(engine, "fork", long)
        await engine.close()
        return one.asked, two.asked

    assert asyncio.run(main()) == (["parent", "parent", "fork"], ["other"])


def test_by_load_alone_every_request_goes_where_the_least_is_asked():
    prompt = [7] * 160
    assert asked_at_once([("a", prompt), ("b", prompt), ("a", prompt)], routing="load") == (["a", "a"], ["b"])
    assert asked_at_once([("a", prompt), ("a", prompt)], routing="load") == (["a"], ["a"])


def test_all_replicas_that_hold_an_episode_forget_it():
    async def main():
        one, two = Fake("one"), Fake("two")
        engine = engine_of(one, two, routing="load")
        one.let.clear()
        first = ask(engine, "a")
        await asyncio.sleep(0)
        await ask(engine, "a")
        one.let.set()
        await first
        engine.forget("a")
        await engine.close()
        return one.forgot, two.forgot

    assert asyncio.run(main()) == (["a"], ["a"])


def test_what_was_asked_of_a_dead_replica_is_asked_of_another():
    async def main():
        one, two = Fake("one"), Fake("two")
        engine = engine_of(one, two)
        one.let.clear()
        waiting = ask(engine, "a")
        await asyncio.sleep(0)
        one.gone = True
        one.let.set()
        answer = await waiting
        await ask(engine, "a")
        await engine.close()
        return answer, one.asked, two.asked, engine.rerouted

    assert asyncio.run(main()) == (ANSWER, ["a"], ["a", "a"], 1)


def test_a_replica_that_began_again_is_not_asked_before_it_is_ready():
    async def main():
        one, two = Fake("one"), Fake("two")
        engine = engine_of(one, two)
        one.gone = True
        await ask(engine, "a")
        one.gone, one.ready, one.asked = False, False, []
        await asyncio.sleep(0.03)
        await asyncio.gather(*(ask(engine, f"e{k}") for k in range(4)))
        before = list(one.asked)
        one.ready = True
        await asyncio.sleep(0.03)
        await asyncio.gather(*(ask(engine, f"f{k}") for k in range(4)))
        await engine.close()
        return before, one.asked

    before, asked = asyncio.run(main())
    assert before == []
    assert asked


def test_where_all_are_gone_a_request_waits_and_then_fails_with_the_numbers():
    async def main():
        one = Fake("one")
        engine = engine_of(one, patience=0.05)
        one.gone = True
        try:
            with pytest.raises(InfrastructureError, match=r"none of 1 engine replicas can be asked, for 0\.05 s"):
                await ask(engine, "a")
            later = ask(engine, "a")
            one.gone = False
            return await later
        finally:
            await engine.close()

    assert asyncio.run(main()) == ANSWER


def test_tokens_are_not_told_one_by_one():
    engine = engine_of(Fake("one"))
    with pytest.raises(ValueError, match="on_tokens"):
        asyncio.run(
            engine.generate(GenerateRequest(TokenSequence([1]), Sampling(4), "a", on_tokens=lambda tokens: False))
        )


def test_one_that_joins_later_is_asked_from_when_it_is_ready():
    async def main():
        one, late = Fake("one"), Fake("late")
        late.gone = True  # it was not placed yet
        engine = ReplicatedEngine([one], late=[late], abilities=EngineAbilities(), patience_seconds=5.0)
        engine.look_for_late_ones()
        for episode in ("a", "b"):
            await ask(engine, episode)
        before = engine.count
        late.gone = False
        while engine.count < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await ask(engine, "c")
        await engine.close()
        return before, one.asked, late.asked

    assert asyncio.run(main()) == (1, ["a", "b"], ["c"])
