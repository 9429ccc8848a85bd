"""Several engines behave as one: an episode stays with its KV cache, and requests of a dead replica are sent to
another."""

import asyncio

import pytest

from whetstone.errors import InfrastructureError
from whetstone.inference import EngineStatistics, GenerateRequest, Generation, Sampling
from whetstone.inference.protocol import EngineCapabilities
from whetstone.scaling import replicated_engine
from whetstone.scaling.protocol import ActorUnavailable, GenerationResult, ReplicaStatus
from whetstone.scaling.replicated_engine import ReplicatedEngine
from whetstone.trajectory import TokenSequence

ANSWER = Generation((1,), (-0.5,), (0.1,), (3,), "stop")


@pytest.fixture(autouse=True)
def _short_polling(monkeypatch):
    monkeypatch.setattr(replicated_engine, "LOOK_SECONDS", 0.005)


class FakeReplica:
    """Respond when released, and record requests; `ready` and `gone` can be set."""

    def __init__(self, name):
        self.name, self.ready, self.gone, self.requested, self.forgot = name, True, False, [], []
        self.let = asyncio.Event()
        self.let.set()

    async def generate(self, request):
        self.requested.append(request.episode)
        await self.let.wait()
        if self.gone:
            raise ActorUnavailable("dead")
        return GenerationResult(ANSWER, 0)

    async def status(self):
        if self.gone:
            raise ActorUnavailable("dead")
        return ReplicaStatus(self.ready, 3, EngineStatistics(), EngineCapabilities(), 0, "n", 1)

    def forget(self, episode):
        self.forgot.append(episode)


def get_engine_settings(*replicas, patience=5.0, routing="prefix"):
    return ReplicatedEngine(replicas, capabilities=EngineCapabilities(), patience_seconds=patience, routing=routing)


def ask(engine, episode, prompt=(1,)):
    return asyncio.ensure_future(engine.generate(GenerateRequest(TokenSequence(prompt), Sampling(4), episode)))


def test_episode_stays_with_its_replica_and_new_ones_go_to_the_least_loaded():
    async def main():
        one, two = FakeReplica("one"), FakeReplica("two")
        engine = get_engine_settings(one, two)
        for episode in ("a", "b", "a", "c", "b", "d", "a"):
            await ask(engine, episode)
        engine.forget("a")
        await engine.close()
        return one, two

    one, two = asyncio.run(main())
    assert {*one.requested} == {"a", "c"}
    assert {*two.requested} == {"b", "d"}
    assert (one.forgot, two.forgot) == (["a"], [])


def concurrent_requests(prompts, **options):
    """Return the episodes of each of two replicas if no request is answered before all are sent."""

    async def main():
        one, two = FakeReplica("one"), FakeReplica("two")
        engine = get_engine_settings(one, two, **options)
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
        return one.requested, two.requested

    return asyncio.run(main())


def test_siblings_go_to_the_replica_with_their_prefix_until_its_queue_costs_more():
    one, two = [7] * 160, [8] * 160
    siblings = [("a0", one), ("b0", two), ("a1", one), ("b1", two), ("a2", one), ("b2", two)]
    assert concurrent_requests(siblings) == (["a0", "a1", "a2"], ["b0", "b1", "b2"])
    # 160 tokens cost as much as a queue that is longer by two and a half requests
    assert concurrent_requests([(f"a{k}", one) for k in range(4)]) == (["a0", "a1", "a2"], ["a3"])


def test_long_prefix_of_all_episodes_does_not_keep_them_on_one_replica():
    async def main():
        one, two = FakeReplica("one"), FakeReplica("two")
        engine = get_engine_settings(one, two)
        shared = [7] * 1024
        for k in range(40):  # each waits for a tool before the next starts
            await ask(engine, f"e{k}", [*shared, *[k] * 32])
        await engine.close()
        return len(one.requested), len(two.requested)

    # sixteen more episodes cost as much as one prefill; then both replicas have it and share the load
    assert asyncio.run(main()) == (20, 20)


def test_fork_goes_to_the_replica_of_its_parent():
    async def main():
        one, two = FakeReplica("one"), FakeReplica("two")
        engine = get_engine_settings(one, two)
        long = [7] * 640
        await ask(engine, "parent", long[:64])
        await ask(engine, "other", [8] * 64)
        await ask(engine, "parent", long)
        await ask(engine, "fork", long)
        await engine.close()
        return one.requested, two.requested

    assert asyncio.run(main()) == (["parent", "parent", "fork"], ["other"])


def test_routing_by_load_sends_every_request_to_the_least_loaded():
    prompt = [7] * 160
    assert concurrent_requests([("a", prompt), ("b", prompt), ("a", prompt)], routing="load") == (["a", "a"], ["b"])
    assert concurrent_requests([("a", prompt), ("a", prompt)], routing="load") == (["a"], ["a"])


def test_all_replicas_with_an_episode_forget_it():
    async def main():
        one, two = FakeReplica("one"), FakeReplica("two")
        engine = get_engine_settings(one, two, routing="load")
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


def test_request_of_a_dead_replica_is_sent_to_another():
    async def main():
        one, two = FakeReplica("one"), FakeReplica("two")
        engine = get_engine_settings(one, two)
        one.let.clear()
        waiting = ask(engine, "a")
        await asyncio.sleep(0)
        one.gone = True
        one.let.set()
        answer = await waiting
        await ask(engine, "a")
        await engine.close()
        return answer, one.requested, two.requested, engine.rerouted

    assert asyncio.run(main()) == (ANSWER, ["a"], ["a", "a"], 1)


def test_restarted_replica_gets_no_request_before_it_is_ready():
    async def main():
        one, two = FakeReplica("one"), FakeReplica("two")
        engine = get_engine_settings(one, two)
        one.gone = True
        await ask(engine, "a")
        one.gone, one.ready, one.requested = False, False, []
        await asyncio.sleep(0.03)
        await asyncio.gather(*(ask(engine, f"e{k}") for k in range(4)))
        before = list(one.requested)
        one.ready = True
        await asyncio.sleep(0.03)
        await asyncio.gather(*(ask(engine, f"f{k}") for k in range(4)))
        await engine.close()
        return before, one.requested

    before, requested = asyncio.run(main())
    assert before == []
    assert requested


def test_without_replicas_a_request_waits_and_then_fails_with_the_numbers():
    async def main():
        one = FakeReplica("one")
        engine = get_engine_settings(one, patience=0.05)
        one.gone = True
        try:
            with pytest.raises(InfrastructureError, match=r"none of 1 engine replicas was available within 0\.05 s"):
                await ask(engine, "a")
            later = ask(engine, "a")
            one.gone = False
            return await later
        finally:
            await engine.close()

    assert asyncio.run(main()) == ANSWER


def test_tokens_are_not_streamed_one_by_one():
    engine = get_engine_settings(FakeReplica("one"))
    with pytest.raises(ValueError, match="on_tokens"):
        asyncio.run(
            engine.generate(GenerateRequest(TokenSequence([1]), Sampling(4), "a", on_tokens=lambda tokens: False))
        )


def test_joining_replica_gets_requests_when_it_is_ready():
    async def main():
        one, late = FakeReplica("one"), FakeReplica("late")
        late.gone = True  # not placed yet
        engine = ReplicatedEngine([one], late=[late], capabilities=EngineCapabilities(), patience_seconds=5.0)
        engine.look_for_late_ones()
        for episode in ("a", "b"):
            await ask(engine, episode)
        before = engine.count
        late.gone = False
        while engine.count < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await ask(engine, "c")
        await engine.close()
        return before, one.requested, late.requested

    assert asyncio.run(main()) == (1, ["a", "b"], ["c"])
