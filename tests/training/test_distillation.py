"""A distillation stage: a killed run resumes exactly, and an unsuitable teacher is refused."""

import asyncio
import itertools
import json

import pytest
import torch

from support.small import StopAfter, Stopped
from whetstone.analysis.replay_check import RunReplay
from whetstone.errors import RecipeError
from whetstone.recipe import list_stages, load_recipe
from whetstone.reporting import Progress
from whetstone.training import final_policy, train

QUIET = Progress(quiet=True)
TINY = (
    "policy.tiny={vocab_size: 300, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16, "
    "context_length: 256}"
)
PLAIN = [TINY, "ablations=null", "supervised=null", "reinforcement=null", "evaluation.episodes=2",
         "rollout.group_size=1", "rollout.max_new_tokens=6"]  # fmt: skip
TAUGHT = {
    "distillation": {"steps": 3, "tasks_per_step": 3, "checkpoint_interval_steps": 2},
    "teacher": {"privileged_context": "hint"},
}


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"distillation": {}}, "distillation: requires teacher"),
        ({"distillation": {}, "teacher": {}}, "teacher: the policy with the same context is no teacher"),
        ({"distillation": {}, "teacher": {"privileged_context": "hint", "offload": True}}, "offload: has no effect"),
    ],
)
def test_unsuitable_teacher_is_refused(stage, message):
    with pytest.raises(RecipeError, match=message):
        list_stages(load_recipe("demo", PLAIN, stages=[stage]))


@pytest.mark.slow
def test_task_without_a_hint_is_reported_before_training(tmp_path):
    stage = {**TAUGHT, "teacher": {"privileged_context": "proof"}}
    with pytest.raises(RecipeError, match=r"stage 1-distillation: .*has no private `proof`; it has answer, "):
        train(load_recipe("demo", PLAIN, stages=[stage]), tmp_path / "run", progress=QUIET)
    assert not (tmp_path / "run" / "stages").exists()


@pytest.mark.slow
def test_policy_with_a_hint_is_its_own_teacher_and_a_kill_changes_nothing(tmp_path):
    resolved = load_recipe("demo", PLAIN, stages=[TAUGHT])
    train(resolved, tmp_path / "whole", progress=QUIET)
    folder = tmp_path / "whole" / "stages" / "1-distillation"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows] == ["distillation"] * 3
    assert all(row["update/skipped_fraction"] == 0 and row["distillation/advantage"] != 0 for row in rows)
    for steps in itertools.chain((1, 2), itertools.repeat(9)):
        try:
            train(resolved, tmp_path / "killed", resume=True, progress=StopAfter(steps))
        except Stopped:
            continue
        break
    one, other = (final_policy(tmp_path / name).model.state_dict() for name in ("whole", "killed"))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    checks = asyncio.run(computed_again(folder))
    assert [check.what for check in checks][-1] == "updates 1 to 3"
    assert not any(check.changed for check in checks)


async def computed_again(folder):
    return [check async for check in RunReplay(folder).recompute_all(updates=True)]
