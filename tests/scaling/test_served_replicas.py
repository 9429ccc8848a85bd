"""vLLM servers as replicas, each at its own address: weights reach all of them, and one can die.

The servers are fakes; `benchmarks/exact/vllm_replica.py` calls a real one.
"""

import asyncio

import pytest
import torch

import crash
from support.inference_servers import VLLM, served
from support.scaling import HereCluster, HereReplica
from whetstone.assembly.assembly import assemble
from whetstone.errors import EngineError
from whetstone.policies import build_tiny, save_policy
from whetstone.recipe import load_recipe
from whetstone.rollout import make_plans
from whetstone.scaling import replicated_engine, weight_sync_engine, worker_pool
from whetstone.scaling.engine_replica import get_engine_settings
from whetstone.scaling.protocol import WeightUpdate
from whetstone.scaling.replica_check import check_replica
from whetstone.trajectory import TokenSequence

pytestmark = pytest.mark.slow
GROUPS = 6


@pytest.fixture(autouse=True)
def _short_polling(monkeypatch):
    for module in (weight_sync_engine, replicated_engine, worker_pool):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)


def recipe(policy, *urls):
    overrides = [*crash.build_overrides("synchronous", policy), "engine={name: vllm, address: 'http://127.0.0.1:9'}"]
    scale = ["scale=ray", f"scale.engine_replicas={len(urls)}", f"scale.engine_addresses={list(urls)}"]
    return load_recipe("demo", [*overrides, *scale])


async def until(true):
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def test_servers_sample_from_the_policy_and_receive_its_new_weights(speaking_policy):
    torch.manual_seed(0)
    with served(VLLM, speaking_policy) as one, served(VLLM, speaking_policy) as two:
        parts = assemble(recipe(speaking_policy, one.url, two.url))
        engines = [get_engine_settings(parts, k) for k in range(2)]
        assert [engine.options["address"] for engine in engines] == [one.url, two.url]

        async def main():
            async with HereCluster(parts, engines=engines) as cluster:
                for replica in cluster.replicas:
                    await check_replica(replica, parts, timeout_seconds=20)
                actor = parts.policy_actor(cluster.engine, temperature=1.0)
                collector = cluster.distribute_collector(parts.build_collector(actor, method=parts.method))
                plans = list(make_plans([parts.source.task(k) for k in range(GROUPS)], seed=7, name="g/"))
                groups = [group async for group in collector.groups(plans, parts.strategy)]
                weights = {n: torch.nn.Parameter(p.detach() * 1.5) for n, p in parts.policy.model.named_parameters()}
                await cluster.engine.load_weights(weights, 1)
                scores = [
                    (await replica.score(TokenSequence([5, 6, 7, 8]), start=1)).logprobs for replica in cluster.replicas
                ]
                versions = [(await replica.status()).version for replica in cluster.replicas]
                return groups, scores, versions

        groups, (first, second), versions = asyncio.run(main())
    assert all(t.ended == "terminated" or t.turns for group in groups for t in group.trajectories)
    assert len(groups) == GROUPS
    assert first == pytest.approx(second, abs=1e-5)
    assert versions == [1, 1]
    for server in (one, two):
        assert any(path == "/inference/v1/generate" for path, _, _ in server.asked)


def test_requests_of_a_dead_server_go_to_another_and_it_gets_weights_before_new_requests(
    speaking_policy,
):
    messages = []
    with served(VLLM, speaking_policy) as one, served(VLLM, speaking_policy) as two:
        parts = assemble(recipe(speaking_policy, one.url, two.url))

        def down(path, answer):
            return 500 if path == "/inference/v1/generate" and not one.healthy else answer

        one.faults = down

        async def main():
            engines = [get_engine_settings(parts, k) for k in range(2)]
            async with HereCluster(parts, engines=engines, workers=1, say=messages.append) as cluster:
                actor = parts.policy_actor(cluster.engine, temperature=1.0)
                collector = cluster.distribute_collector(parts.build_collector(actor, method=parts.method))

                async def play(begin):
                    tasks = [parts.source.task(k) for k in range(GROUPS)]
                    plans = list(make_plans(tasks, seed=begin, name=f"{begin}/"))
                    return [group async for group in collector.groups(plans, parts.strategy)]

                before = await play(1)
                one.healthy = False
                without = await play(2)
                assert not cluster.engine.handles[0].up or one.healthy
                loads = one.loaded
                one.healthy = True
                await until(lambda: cluster.engine.handles[0].up)
                reloaded = one.loaded
                after = await play(3)
                return before, without, after, loads, reloaded

        before, without, after, loads, reloaded = asyncio.run(main())
    for groups in (before, without, after):
        assert len(groups) == GROUPS
        assert not any(t.removal for group in groups for t in group.trajectories)  # no episode is void
    assert reloaded > loads
    assert any("replica 0 died; its requests are sent to other replicas" in line for line in messages)


def test_a_server_of_another_model_is_refused(speaking_policy, tmp_path):
    other = build_tiny(["other words 12 345"] * 3, hidden=16, heads=2, layers=1, intermediate=16, context_length=256)
    save_policy(other, tmp_path)
    with served(VLLM, tmp_path) as server:
        parts = assemble(recipe(speaking_policy, server.url))

        async def main():
            replica = HereReplica(parts, "replica 0", get_engine_settings(parts, 0))
            await replica.load(WeightUpdate(0, None, (), {}), in_flight="drain")
            await check_replica(replica, parts, timeout_seconds=5)

        with pytest.raises(EngineError, match=r"another tokenizer|weights could not be loaded|another model"):
            asyncio.run(main())
