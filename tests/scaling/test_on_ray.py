"""The same recipe on a real Ray: the same weights, whoever is killed, and nothing lost or doubled."""

import pytest
import torch

import crash
import ray_kills
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train

SPREAD = ["scale=local-ray", "scale.environment_workers=2", "scale.engine_replicas=2"]


@pytest.mark.slow
def test_killed_again_and_again_a_spread_run_has_the_weights_of_one_in_a_single_process(tmp_path, speaking_policy):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray>=2.50'")
    overrides = crash.overrides_of("one step off, by recipe", speaking_policy)
    train(load_recipe("demo", overrides), tmp_path / "alone", progress=Progress(quiet=True))

    killed = []

    def kill(row):
        if row["stage"] == "reinforcement" and row["step"] in (1, 3):
            killed.extend(ray_kills.kill_one(kind) for kind in ("WorkerActor", "ReplicaActor"))

    train(
        load_recipe("demo", [*overrides, *SPREAD]), tmp_path / "spread", on_metrics=kill, progress=Progress(quiet=True)
    )
    assert [kind for kind in killed if kind] == ["WorkerActor", "ReplicaActor"] * 2
    crash.accounted(tmp_path / "spread")
    alone, spread = crash.weights(tmp_path / "alone"), crash.weights(tmp_path / "spread")
    assert alone.keys() == spread.keys()
    assert all(torch.equal(alone[name], spread[name]) for name in alone)
    assert not ray_kills.of_ray()
