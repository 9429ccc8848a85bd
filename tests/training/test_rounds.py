"""Rounds that train on samples of the previous round: nothing is lost or duplicated, and hints are not trained."""

import asyncio
import itertools
import json
import math

import pytest
import torch

from support.small import StopAfter, Stopped
from whetstone.analysis.replay_check import RunReplay
from whetstone.errors import RecipeError, RunDirectoryError
from whetstone.recipe import list_stages, load_recipe
from whetstone.record import RunRecord
from whetstone.record.checkpoint import latest_checkpoint, load_checkpoint
from whetstone.reporting import Progress
from whetstone.training import final_policy, train
from whetstone.trajectory import Task

QUIET = Progress(quiet=True)
TINY = (
    "policy.tiny={vocab_size: 300, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16, "
    "context_length: 256}"
)
PLAIN = [TINY, "ablations=null", "supervised=null", "reinforcement=null", "evaluation.episodes=4",
         "rollout.group_size=3", "rollout.max_new_tokens=6", "reward=support.small:odd"]  # fmt: skip
SAMPLED = {"sampling": {"steps": 2, "tasks_per_step": 4, "checkpoint_interval_steps": 1}}
IMITATED = {
    "supervised": {
        "data": {"from_stage": "previous", "top_k_per_task": 2, "min_reward": 1.0},
        "steps": 2,
        "batch_size": 4,
    }
}


def chain(*stages, **more):
    return load_recipe("demo", PLAIN, stages=list(stages), **more)


def weights(run_dir):
    return final_policy(run_dir).model.state_dict()


def equal_weights(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_stage_reads_the_previous_sampling_stage_or_the_last_of_a_name():
    tried = {"sampling": {}, "name": "tried"}
    later = {"supervised": {"data": {"from_stage": "tried"}}}
    stages = list_stages(chain(tried, IMITATED, {"reinforcement": {}}, IMITATED, later, repeat_stages=2))
    reads = [stage.reads.get("supervised.data", "") for stage in stages]
    assert reads == ["", "1-tried", "", "3-reinforcement", "1-tried", "", "6-tried", "", "8-reinforcement", "6-tried"]
    later["supervised"]["data"]["from_stage"] = "tired"
    with pytest.raises(
        RecipeError, match='no stage "tired" samples before it; known are previous, tried; did you mean'
    ):
        list_stages(chain(tried, later))


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([IMITATED, SAMPLED], r"no stage before it samples \(sampling or distillation or reinforcement\)"),
        ([SAMPLED, {"supervised": {"data": {"path": "x", "from_stage": "previous"}}}], "set either path"),
        ([SAMPLED, {"preference": {"data": {}}}], "set either path"),
        ([{"sampling": {"learning_rate": 0.1}}], "learning_rate: has no effect: a sampling stage does not train"),
        ([{"sampling": {"until": {"success": 0.5}}}], "until: has no effect: a sampling stage does not train"),
    ],
)
def test_rounds_without_training_data_are_refused(stages, message):
    with pytest.raises(RecipeError, match=message):
        list_stages(chain(*stages))


def test_recipe_of_one_stage_has_no_previous_stage():
    alone = [*PLAIN[:-3], "rollout=null", "advantage=null", "objective=null"]
    one = load_recipe("demo", alone[:2] + alone[3:], supervised={"data": {"from_stage": "previous"}})
    with pytest.raises(RecipeError, match="there is no preceding stage; put both into stages"):
        list_stages(one)


def test_rounds_of_methods_have_their_stages_and_the_warm_up_of_the_recipe_once():
    for method, best in (("star", 1), ("expert-iteration", 4)):
        stages = list_stages(load_recipe("demo", with_=method))
        names = [stage.name for stage in stages]
        assert names == ["1-supervised", *(f"{2 + k}-{('sampling', 'imitation')[k % 2]}" for k in range(6))]
        assert stages[0].resolved.recipe.supervised.data is None
        imitated = [stage.resolved.recipe.supervised.data for stage in stages if stage.name.endswith("imitation")]
        assert {each.top_k_per_task for each in imitated} == {best}
        assert [stage.reads.get("supervised.data") for stage in stages][2::2] == names[1::2]
    without = list_stages(load_recipe("demo", ["supervised=null"], with_="star"))
    assert [stage.kind for stage in without] == ["sampling", "supervised"] * 3
    assert without[0].resolved.recipe.rollout.strategy.options == {"hints": "answer"}


@pytest.mark.slow
def test_q_function_of_log_probs_moves_the_policy_by_earlier_samples(tmp_path):
    small = [*(key for key in PLAIN if not key.startswith("reinforcement")), "sampling.steps=2",
             "sampling.tasks_per_step=4", "critic.warmup_updates=0"]  # fmt: skip
    train(load_recipe("demo", small, with_="b-coder"), tmp_path / "run", progress=QUIET)
    path = tmp_path / "run" / "stages" / "2-offline" / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 60
    assert all(row["update/skipped_fraction"] == 0 for row in rows)
    assert all(math.isfinite(row["value/loss"]) for row in rows)
    ends = [latest_checkpoint(tmp_path / "run" / "stages" / name) for name in ("1-sampling", "2-offline")]
    one, other = (load_checkpoint(path)[0].model.state_dict() for path in ends)
    assert not equal_weights(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["star", "expert-iteration"])
def test_rounds_of_a_method_imitate_their_samples_on_the_calculator(tmp_path, method):
    small = [*(key for key in PLAIN if not key.startswith("reinforcement")), "sampling.steps=1",
             "sampling.tasks_per_step=4", "repeat_stages=2"]  # fmt: skip
    resolved = load_recipe("demo", small, with_=method)
    summary = train(resolved, tmp_path / "run", progress=QUIET)
    assert list(summary.evaluations) == ["untrained", "1-sampling", "2-imitation", "3-sampling", "4-imitation"]
    for name in ("2-imitation", "4-imitation"):
        path = tmp_path / "run" / "stages" / name / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert len(rows) == 40
        assert all(row["update/skipped_fraction"] == 0 for row in rows)
    ends = [latest_checkpoint(tmp_path / "run" / "stages" / name) for name in ("1-sampling", "4-imitation")]
    one, other = (load_checkpoint(path)[0].model.state_dict() for path in ends)
    assert not equal_weights(one, other)


@pytest.mark.slow
def test_sampling_changes_no_weight_and_stores_every_episode(tmp_path):
    summary = train(chain(SAMPLED), tmp_path / "run", progress=QUIET)
    folder = tmp_path / "run" / "stages" / "1-sampling"
    assert list(summary.evaluations) == ["untrained", "1-sampling"]
    assert summary.evaluations["untrained"].success == summary.evaluations["1-sampling"].success
    record = RunRecord(folder)
    groups = [record.load(number, Task("", "")) for number in sorted(record.admitted)]
    assert [len(group.trajectories) for group in groups] == [3] * 8
    versions = {
        version for group in groups for t in group.trajectories for turn in t.turns for version in turn.action.versions
    }
    assert versions == {0}  # no weight was updated
    one, other = (load_checkpoint(path)[0] for path in sorted((folder / "checkpoints").glob("step-*")))
    assert equal_weights(one.model.state_dict(), other.model.state_dict())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows] == ["sampling"] * 2
    assert rows[0]["cost_per_step/episodes"] == 12
    checks = asyncio.run(computed_again(folder))
    assert not any(check.changed for check in checks)
    with pytest.raises(RunDirectoryError, match="the record has no updates to replay"):
        asyncio.run(computed_again(folder, updates=True))


async def computed_again(folder, **how):
    return [check async for check in RunReplay(folder).recompute_all(**how)]


@pytest.mark.slow
def test_rounds_killed_anywhere_resume_to_the_same_weights(tmp_path):
    resolved = chain(
        SAMPLED,
        IMITATED,
        {"preference": {"data": {"from_stage": "previous"}, "steps": 1, "batch_size": 2}},
        repeat_stages=2,
    )
    undisturbed = train(resolved, tmp_path / "whole", progress=QUIET)
    assert [stage["name"] for stage in undisturbed.written["stages"]][3:] == [
        "4-sampling",
        "5-supervised",
        "6-preference",
    ]
    killed = 0
    for steps in itertools.chain((1, 2, 4), itertools.repeat(99)):
        try:
            train(resolved, tmp_path / "killed", resume=True, progress=StopAfter(steps))
        except Stopped:
            killed += 1
            continue
        break
    assert killed == 3
    assert equal_weights(weights(tmp_path / "whole"), weights(tmp_path / "killed"))
    ends = [latest_checkpoint(tmp_path / "whole" / "stages" / name) for name in ("4-sampling", "3-preference")]
    assert equal_weights(*(load_checkpoint(path)[0].model.state_dict() for path in ends))


@pytest.mark.slow
def test_imitation_of_the_best_uses_no_failed_episode(tmp_path):
    train(chain(SAMPLED, IMITATED), tmp_path / "run", progress=QUIET)
    rows = [json.loads(line) for line in (tmp_path / "run/stages/2-supervised/metrics.jsonl").read_text().splitlines()]
    assert [row["demonstrations/skipped_fraction"] for row in rows] == [0, 0]
    assert all(row["update/skipped_fraction"] == 0 for row in rows)


@pytest.mark.slow
def test_better_turn_is_preferred_at_the_fork_of_sampled_episodes(tmp_path):
    forked = {**SAMPLED, "rollout": {"strategy": "random_branching"}}
    steps = {"data": {"from_stage": "previous"}, "steps": 2, "batch_size": 2, "objective": "step_dpo"}
    train(chain(forked, {"preference": steps}), tmp_path / "run", progress=QUIET)
    rows = [json.loads(line) for line in (tmp_path / "run/stages/2-preference/metrics.jsonl").read_text().splitlines()]
    assert all(row["preference/pairs"] > 0 for row in rows)
