"""`reinforcement.keep: best` ends with the checkpoint that is best on validation tasks, also after a kill."""

import json
import shutil

import pytest
import torch

from support.small import SMALL, TEACHING, StopAfter, Stopped
from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe
from whetstone.record.checkpoint import Position, checkpoint_path, kept_checkpoint, latest_checkpoint, load_checkpoint
from whetstone.record.run_directory import read_json, write_json
from whetstone.reporting import Progress, kept_sentence
from whetstone.training import final_policy, train
from whetstone.training.kept import best_checkpoint, best_step, combine_members, validation_path

KEEP = [
    *SMALL, TEACHING, "ablations=null", "reinforcement.keep=best", "reinforcement.steps=4",
    "reinforcement.checkpoint_interval_steps=1", "reinforcement.keep_last=1", "reinforcement.learning_rate=0.1",
    "evaluation.validation_episodes=6", "evaluation.temperature=1.0",
]  # fmt: skip


def weights(path):
    policy, _, _ = load_checkpoint(path)
    return policy.model.state_dict()


def write_results(folder, results):
    for step, (success, reward) in results.items():
        path = validation_path(folder, step)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"success": success, "reward": reward, "interval": [0, 1], "episodes": 5})


def test_success_then_reward_then_the_later_step_decide(tmp_path):
    write_results(tmp_path, {0: (0.6, 0.9), 5: (0.7, 0.1), 10: (0.7, 0.3), 15: (0.7, 0.3), 20: (0.9, 1.0)})
    assert best_step(tmp_path, done=15) == 15
    assert best_step(tmp_path, done=10) == 10
    assert best_step(tmp_path, done=5) == 5
    assert best_step(tmp_path, done=0) == 0


def test_steps_without_a_scored_episode_are_no_candidates(tmp_path):
    write_results(tmp_path, {0: (None, None)})
    assert best_step(tmp_path, done=5) is None
    assert best_checkpoint(tmp_path, Position("reinforcement", {"reinforcement": 5}, 5)) == set()


def test_means_over_the_members_decide(tmp_path):
    (tmp_path / "validation").mkdir()

    def write(step, **successes):
        members = {name: {"success": s, "reward": s, "episodes": 4} for name, s in successes.items()}
        write_json(
            tmp_path / "validation" / f"step-{step:06d}.json", {"success": 1.0, "reward": 1.0, "members": members}
        )

    write(0, buyer=0.5, seller=0.75)  # mean 0.625
    write(5, buyer=1.0, seller=0.0)  # 0.5, though the first member is best here
    write(10, buyer=1.0, seller=None)  # the seller has no scored episode
    assert best_step(tmp_path, done=10) == 0
    scores = combine_members(read_json(validation_path(tmp_path, 0)))
    assert scores == {"success": 0.625, "reward": 0.625, "interval": None, "episodes": 8}


def test_the_best_checkpoint_counts_the_steps_of_earlier_stages(tmp_path):
    write_results(tmp_path, {0: (0.8, 0.5), 5: (0.4, 0.5), 10: (0.9, 0.5)})
    position = Position("reinforcement", {"supervised": 240, "reinforcement": 5}, 245)
    assert best_checkpoint(tmp_path, position) == {checkpoint_path(tmp_path, 240)}


def test_the_line_has_the_score_of_the_last_checkpoint():
    selected = {"step": 0, "of": 5, "validation": {"success": 0.8, "episodes": 9}, "last": {"success": 0.4}}
    assert kept_sentence(selected) == (
        "reinforcement.keep: best kept step 0 of 5: 80.0% of 9 validation episodes succeed, the last checkpoint 40.0%"
    )
    assert "scored no episode" in kept_sentence({**selected, "last": {"success": None}})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept") / "run"
    train(load_recipe("demo", KEEP), folder, progress=Progress(quiet=True))
    return folder


def test_a_run_ends_with_the_weights_of_its_best_validation(run):
    selected = read_json(run / "kept.json")
    results = {int(path.stem[5:]): read_json(path) for path in (run / "validation").glob("*.json")}
    assert sorted(results) == [0, 1, 2, 3, 4]  # the start of the stage and each checkpoint
    assert selected["step"] == max(results, key=lambda step: (results[step]["success"], results[step]["reward"], step))
    assert selected["validation"]["success"] == results[selected["step"]]["success"]
    assert selected["last"]["success"] == results[4]["success"]
    expected = weights(checkpoint_path(run, 2 + selected["step"]))  # two supervised steps
    for name, tensor in final_policy(run).model.state_dict().items():
        assert torch.equal(tensor, expected[name])
    assert kept_checkpoint(run) == checkpoint_path(run, 2 + selected["step"])
    assert latest_checkpoint(run) == checkpoint_path(run, 6)
    assert read_json(run / "summary.json")["kept"] == selected
    assert kept_sentence(selected) in (run / "report.html").read_text()


def test_validation_tasks_are_neither_test_tasks_nor_trained(run):
    def tasks(path):
        return {json.loads(line)["task_id"] for line in path.open()}

    validation = tasks(run / "validation" / "step-000000.jsonl")
    assert len(validation) == 6
    assert tasks(run / "validation" / "step-000004.jsonl") == validation
    for name in ("untrained", "supervised", "reinforcement"):
        test = tasks(run / "trajectories" / f"evaluation-{name}.jsonl")
        assert len(test) == 4
        assert not test & validation
    trained = [tasks(path) for path in (run / "trajectories").glob("step-*.jsonl")]
    assert trained
    assert not set().union(*trained) & validation


@pytest.mark.parametrize("steps", [0, 2])
def test_a_killed_run_keeps_the_same_checkpoint(run, tmp_path, steps):
    recipe = load_recipe("demo", KEEP)
    with pytest.raises(Stopped):
        train(recipe, tmp_path / "run", progress=StopAfter(steps, of="reinforcement"))
    train(recipe, tmp_path / "run", resume=True, progress=Progress(quiet=True))
    assert read_json(tmp_path / "run" / "kept.json") == read_json(run / "kept.json")
    one, other = (final_policy(folder).model.state_dict() for folder in (tmp_path / "run", run))
    assert all(torch.equal(one[name], other[name]) for name in other)
    one, other = (read_json(folder / "summary.json")["evaluations"] for folder in (tmp_path / "run", run))
    assert one == other


def test_the_start_is_a_candidate_without_a_supervised_stage(tmp_path):
    changes = [change for change in KEEP if not change.startswith("supervised.")]
    train(load_recipe("demo", [*changes, "supervised=null"]), tmp_path / "run", progress=Progress(quiet=True))
    selected = read_json(tmp_path / "run" / "kept.json")
    assert kept_checkpoint(tmp_path / "run") == checkpoint_path(tmp_path / "run", selected["step"])
    assert validation_path(tmp_path / "run", 0).is_file()


def test_a_damaged_selected_checkpoint_is_reported_and_not_replaced(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    folder = kept_checkpoint(tmp_path / "run")
    (folder / "trainer" / "position.json").write_text("{")
    lines = []
    assert kept_checkpoint(tmp_path / "run", report=lines.append) is None
    assert "damaged" in lines[0]


def test_too_few_held_out_tasks_are_rejected_before_training(tmp_path):
    lines = "".join(json.dumps({"prompt": f"{k}+1", "answer": k + 1}) + "\n" for k in range(40))
    (tmp_path / "tasks.jsonl").write_text(lines)
    tasks = f"tasks={{source: jsonl, path: {tmp_path / 'tasks.jsonl'}}}"
    with pytest.raises(RecipeError, match=r"validation_episodes.*4 test tasks.*6 validation tasks.*has 4 held-out"):
        train(load_recipe("demo", [*KEEP, "supervised=null", tasks]), tmp_path / "run", progress=Progress(quiet=True))


def test_a_later_stage_with_too_few_held_out_tasks_is_rejected_before_the_first(tmp_path):
    lines = "".join(json.dumps({"prompt": f"{k}+1", "answer": k + 1}) + "\n" for k in range(40))
    (tmp_path / "tasks.jsonl").write_text(lines)
    recipe = {
        "policy": {"tiny": {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 16}},
        "tasks": {"source": "jsonl", "path": str(tmp_path / "tasks.jsonl")},
        "reward": "exact_number",
        "evaluation": {"episodes": 4},
        "stages": [{"reinforcement": {"steps": 1}}, {"reinforcement": {"steps": 1, "keep": "best"}}],
    }
    with pytest.raises(RecipeError, match=r"validation_episodes.*has 4 held-out"):
        train(recipe, tmp_path / "run", progress=Progress(quiet=True))
    assert not (tmp_path / "run" / "stages").exists()


def test_validation_episodes_without_selection_have_no_effect():
    with pytest.raises(RecipeError, match="keep is last"):
        load_recipe("demo", ["evaluation.validation_episodes=6"])
