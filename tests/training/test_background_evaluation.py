"""Evaluations during training do not change it, do not delay it, and are not lost."""

import asyncio
import json

import pytest
import torch

from support.small import SMALL, TEACHING, StopAfter, Stopped
from whetstone.analysis import RunReplay
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import final_policy, train

QUIET = Progress(quiet=True)
GIVEN = [*SMALL, TEACHING, "reinforcement.steps=4", "reinforcement.checkpoint_interval_steps=2", "ablations=null"]
BESIDE = [*GIVEN, "evaluation.interval_steps=1", "evaluation.interval_episodes=3"]


def weights(folder):
    return torch.cat([p.flatten() for p in final_policy(folder).model.parameters()])


def during(folder):
    return {path.stem: json.loads(path.read_text()) for path in sorted((folder / "evaluations").glob("*-0*.json"))}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    train(load_recipe("demo", GIVEN), folder / "without", progress=QUIET)
    summary = train(load_recipe("demo", BESIDE), folder / "beside", progress=QUIET)
    return folder, summary


def test_every_step_is_evaluated_and_training_is_the_same(runs):
    folder, summary = runs
    assert list(during(folder / "beside")) == [f"reinforcement-{step:06d}" for step in range(1, 5)]
    assert sorted(summary.during) == [1, 2, 3, 4]
    assert all(evaluation["episodes"] == 3 for evaluation in during(folder / "beside").values())
    assert torch.equal(weights(folder / "without"), weights(folder / "beside"))
    assert during(folder / "without") == {}


def test_last_evaluation_is_of_the_final_weights(runs):
    folder, _ = runs
    last = during(folder / "beside")["reinforcement-000004"]
    end = json.loads((folder / "beside" / "evaluations" / "reinforcement.json").read_text())
    tasks = [
        json.loads(line)["task_id"]
        for line in (folder / "beside" / "trajectories" / "evaluation-reinforcement-000004.jsonl").open()
    ]
    assert len(tasks) == 3
    assert last["temperature"] == end["temperature"]


@pytest.mark.slow
def test_no_evaluation_is_missing_after_a_kill(runs, tmp_path):
    folder, _ = runs
    with pytest.raises(Stopped):
        train(load_recipe("demo", BESIDE), tmp_path, progress=StopAfter(3, of="reinforcement"))
    train(load_recipe("demo", BESIDE), tmp_path, resume=True, progress=QUIET)
    assert during(tmp_path) == during(folder / "beside")
    assert torch.equal(weights(tmp_path), weights(folder / "beside"))


def test_evaluations_can_be_recomputed(runs):
    folder, _ = runs

    async def everything():
        return [each async for each in RunReplay(folder / "beside").recompute_all()]

    changes = {each.what: each.changed for each in asyncio.run(everything())}
    assert changes["evaluation (reinforcement-000004)"] == 0
    assert set(changes.values()) == {0}
