"""The same recipe on a real Ray trains the same weights, even if actors are killed, join or leave."""

import threading
import time

import pytest
import torch

import crash
import ray_kills
from support.gated_environment import GATE
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train

WITHOUT = "Ray is not installed: pip install 'ray>=2.50'"
UPDATES = 12
SPREAD = ["scale=local-ray", "scale.environment_workers=2", "scale.engine_replicas=2"]


def trained(overrides, run_dir, on_metrics=None, messages=None):
    class Told(Progress):
        def say(self, line):
            if messages is not None:
                messages.append(line)

    train(load_recipe("demo", overrides), run_dir, on_metrics=on_metrics, progress=Told(quiet=True))


@pytest.fixture(scope="module")
def single_process(speaking_policy, tmp_path_factory):
    """Return (overrides, the weights of a run in one process)."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(crash, "STEPS", UPDATES)
        overrides = crash.build_overrides("one step off, by recipe", speaking_policy)
        overrides.append(f"reinforcement.steps={UPDATES}")
        run_dir = tmp_path_factory.mktemp("alone") / "run"
        trained(overrides, run_dir)
        yield overrides, crash.load_weights(run_dir)


def compare(alone, run_dir):
    crash.check_accounting(run_dir)
    spread = crash.load_weights(run_dir)
    assert alone.keys() == spread.keys()
    assert all(torch.equal(alone[name], spread[name]) for name in alone)


@pytest.mark.slow
def test_repeatedly_killed_distributed_run_has_the_weights_of_a_single_process(tmp_path, single_process):
    """Kill workers, replicas and judges, which score in separate processes."""
    pytest.importorskip("ray", reason=WITHOUT)
    overrides, weights = single_process
    killed = []

    def kill(row):
        if row["stage"] == "reinforcement" and row["step"] in (1, 3):
            killed.extend(ray_kills.kill_one(kind) for kind in ("WorkerActor", "ReplicaActor", "JudgeActor"))

    trained([*overrides, *SPREAD, "scale.reward_workers=1"], tmp_path / "spread", kill)
    assert [kind for kind in killed if kind] == ["WorkerActor", "ReplicaActor", "JudgeActor"] * 2
    compare(weights, tmp_path / "spread")
    assert not ray_kills.list_ray_processes()


@pytest.mark.slow
def test_joining_node_adds_a_worker_and_a_replica_and_can_leave_again(tmp_path, single_process, monkeypatch):
    """Let episodes wait at a gate while the cluster grows and shrinks, so that both happen within the run. Episodes of
    the
    two following updates may have started before.
    """
    pytest.importorskip("ray", reason=WITHOUT)
    from two_raylets import STORE, join, raylets

    overrides, weights = single_process
    gate = tmp_path / "gate"
    monkeypatch.setenv(GATE, str(gate))
    spread = [
        "environment.name=support.gated_environment:Gated",
        "scale=ray",
        "scale.environment_workers=1",
        "scale.max_environment_workers=2",
        "scale.engine_replicas=1",
        "scale.max_engine_replicas=2",
    ]
    counts, messages, nodes, threads, over = [], [], [], [], threading.Event()

    def on_metrics(*lines):
        deadline = time.monotonic() + 120
        while not all(any(line in each for each in messages) for line in lines) and time.monotonic() < deadline:
            time.sleep(0.05)

    def at(row):
        if row["stage"] != "reinforcement":
            return
        counts.append((row["scale/workers"], row["scale/replicas"], row["scale/nodes"]))
        if row["step"] in changes:
            gate.touch()
            threads.append(threading.Thread(target=behind_the_gate, args=(changes[row["step"]],)))
            threads[-1].start()

    def behind_the_gate(change):
        try:
            change()
        finally:
            gate.unlink()
        over.wait()  # a node ends with the thread that started it

    with raylets(1, cpus=2) as cluster:

        def grow():
            nodes.append(join(cluster, num_cpus=2, object_store_memory=STORE))
            on_metrics("worker 1 joined", "replica 1 joined")

        def shrink():
            cluster.remove_node(nodes[0])
            on_metrics("worker 1 died", "replica 1 died")

        changes = {2: grow, 7: shrink}
        try:
            trained([*overrides, *spread], tmp_path / "spread", at, messages)
        finally:
            over.set()
        for thread in threads:
            thread.join()
    compare(weights, tmp_path / "spread")
    assert counts[0] == (1, 1, 1)
    assert (2, 2, 2) in counts, messages
    assert counts[-1] == (1, 1, 1)
