"""Invalid scale settings are refused with their numbers before the run starts."""

import asyncio
import sys
from types import SimpleNamespace

import pytest
import torch

from support.scaling import HereReplica
from whetstone.assembly.assembly import assemble
from whetstone.errors import EngineError, RecipeError
from whetstone.inference import Generation
from whetstone.recipe import load_recipe
from whetstone.scaling import start_cluster as start_cluster_module
from whetstone.scaling.protocol import ActorRestarting, ActorUnavailable, GenerationResult, WeightUpdate
from whetstone.scaling.ray_start import Demand, start_ray
from whetstone.scaling.replica_check import check_replica
from whetstone.scaling.start_cluster import start_cluster

MIB = 2**20


def demand(**more):
    return Demand(
        **{"cpus": 3.0, "gpus": 0.0, "model_bytes": 10 * MIB, "trained_bytes": 10 * MIB, "replicas": 1, **more}
    )


def ray_with(monkeypatch, *, store=500 * MIB, **resources):
    """Provide a running Ray with these resources."""
    nodes = [{"Alive": True, "NodeID": "n", "Resources": {"object_store_memory": store}}]
    fake = SimpleNamespace(
        is_initialized=lambda: True, cluster_resources=lambda: {"CPU": 4.0, **resources}, nodes=lambda: nodes
    )
    monkeypatch.setitem(sys.modules, "ray", fake)


def refused(overrides, **more):
    with pytest.raises(RecipeError) as failure:
        start_ray(load_recipe("demo", overrides), demand(**more))
    return str(failure.value)


def test_without_ray_the_install_command_is_reported(monkeypatch, small_demo):
    parts = assemble(small_demo("scale=local-ray"))
    monkeypatch.setattr(start_cluster_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match="scale: Ray is not installed; pip install '"):
        asyncio.run(start_cluster(parts, version=0, notify=print))


def test_more_workers_than_the_cluster_has_resources_for(monkeypatch):
    ray_with(monkeypatch)
    message = refused(["scale=ray", "scale.environment_workers=6"], cpus=7.0)
    assert "6 environment and 0 reward workers × 1 CPUs and 1 replicas × 1 are 7, and the cluster has 4" in message


def test_more_gpus_than_the_cluster_has(monkeypatch):
    ray_with(monkeypatch, GPU=1.0)
    message = refused(["scale=ray", "scale.engine_replicas=2", "scale.replica_gpus=1"], gpus=2.0)
    assert "2 replicas × 1 × 1 GPUs are 2, and the cluster has 1 (1 nodes)" in message


def test_replicas_that_do_not_fit_into_memory(monkeypatch):
    ray_with(monkeypatch, memory=float(15 * MIB))
    assert "2 × 10 MiB of weights do not fit into 15 MiB" in refused(["scale=ray"], replicas=2)


def test_an_object_store_that_would_be_full(monkeypatch):
    ray_with(monkeypatch, store=100 * MIB)
    assert "a node's object store has 100 MiB, and weights and episodes take 126 MiB" in refused(["scale=ray"])
    message = refused(["scale=local-ray", "scale.object_store_mib=80"])
    assert "scale.object_store_mib: 80 MiB are less than 126 MiB: the policy (10 MiB), two versions" in message


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["scale.environment_workers=3"], "scale.environment_workers: has no effect: scale.backend is none"),
        (["scale=local-ray", "scale.routing=load"], "scale.routing: has no effect: there is one engine replica"),
        (["scale=local-ray", "scale.address=here:1"], "only `ray` connects to an existing cluster"),
        (["scale=local-ray", "scale.tensor_parallel=2"], "engine local uses one device"),
        (
            [
                "scale=ray",
                "engine={name: vllm, address: 'http://x'}",
                "scale.engine_addresses=['http://a', 'http://b']",
            ],
            "2 addresses for 1 replicas",
        ),
        (["scale=rey"], "should be 'none', 'local-ray' or 'ray', got 'rey'"),
    ],
)
def test_settings_without_effect_or_in_conflict_are_refused(overrides, message):
    with pytest.raises(RecipeError) as failure:
        load_recipe("demo", overrides)
    assert message in str(failure.value)


class OtherReplica:
    """A replica with another model."""

    def __init__(self, replica, *, reads=None, draws=None, dead=()):
        self.name, self.replica, self.reads, self.draws = "replica 0", replica, reads, draws
        self.dead = list(dead)

    async def tokenize(self, text):
        if self.dead:
            raise self.dead.pop()
        return self.reads

    async def generate(self, request):
        answer = await self.replica.generate(request)
        return answer if self.draws is None else GenerationResult(self.draws, 0)


def looked_at(assembly, *, change=None, **more):
    async def main():
        replica = HereReplica(assembly, "replica 0")
        if change is not None:
            change(replica.thing._policy.model)
        await replica.load(WeightUpdate(0, None, (), {}), in_flight="drain")
        await check_replica(OtherReplica(replica, **more), assembly, timeout_seconds=5)

    asyncio.run(main())


@torch.no_grad()
def _otherwise(model):
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape))


def test_replica_is_checked_before_it_is_used(assembly):
    looked_at(assembly)
    with pytest.raises(EngineError, match="replica 0 has other weights: log-probs of 16 sampled tokens differ by"):
        looked_at(assembly, change=_otherwise)
    with pytest.raises(EngineError, match="replica 0 has another tokenizer: it reads 'Compute 12"):
        looked_at(assembly, reads=(1, 2, 3))
    without = Generation((5, 6), (), (), (0, 0), "length")
    with pytest.raises(EngineError, match="replica 0 returned no log-probs of 2 sampled tokens"):
        looked_at(assembly, draws=without)
    other = Generation((10**6,), (-1.0,), (1.0,), (0,), "length")
    with pytest.raises(EngineError, match="replica 0 sampled token 1000000, and the policy's vocabulary"):
        looked_at(assembly, draws=other)


def test_replica_killed_during_its_check_is_checked_again_after_its_restart(assembly):
    looked_at(assembly, dead=[ActorRestarting("on its way")] * 2)
    with pytest.raises(EngineError, match="replica 0 is unreachable: it is dead"):
        looked_at(assembly, dead=[ActorUnavailable("it is dead")])


def test_actor_killed_at_its_start_is_awaited_until_the_deadline(monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray>=2.50'")
    from whetstone.scaling import ray_cluster

    monkeypatch.setattr(ray_cluster, "_RESTARTING_SECONDS", 0.01)
    answers = [ActorRestarting("on its way"), ActorRestarting("on its way"), "the status"]

    async def status():
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    patient = SimpleNamespace(resolved=load_recipe("demo", ["scale=ray", "scale.start_timeout_seconds=0.1"]))
    assert asyncio.run(ray_cluster._begun(status, "worker 0", patient)) == "the status"
    answers[:] = [ActorRestarting("on its way")]
    with pytest.raises(EngineError, match=r"worker 0 did not start within 0\.1 s"):
        asyncio.run(ray_cluster._begun(status, "worker 0", patient))
    answers[:] = [ActorUnavailable("its engine does not start")]
    with pytest.raises(EngineError, match="worker 0 died during its start: its engine does not start"):
        asyncio.run(ray_cluster._begun(status, "worker 0", patient))
