"""A run continues after its directory, its data or its model was moved; content decides whether they are the same."""

import json
import shutil

import pytest
import torch

from support.cli import whetstone
from support.conversations import conversations, written
from support.small import SMALL
from whetstone import plugins
from whetstone.assembly.assembly import assemble
from whetstone.errors import RunDirectoryError
from whetstone.policies import save_policy
from whetstone.recipe import load_recipe
from whetstone.record import latest_checkpoint, run_recipe
from whetstone.record.input_digests import input_digests
from whetstone.record.run_directory import read_changes, run_inputs
from whetstone.reporting import Progress
from whetstone.training import train

TINY = [key for key in SMALL if key.startswith("policy.")]
STAGES = [
    *(key for key in SMALL if not key.startswith(("policy.", "supervised.steps"))),
    "ablations=null", "supervised.steps=3", "reinforcement.steps=1",
    "supervised.checkpoint_interval_steps=1", "supervised.keep_last=9",
]  # fmt: skip


def weights(run_dir):
    return {path.name: path.read_bytes() for path in sorted(latest_checkpoint(run_dir).glob("*.safetensors"))}


def cut_back(run_dir, steps=1):
    for path in (run_dir / "checkpoints").glob("step-*"):
        if int(path.name.removeprefix("step-")) > steps:
            shutil.rmtree(path)
    (run_dir / "summary.json").unlink()


def quiet():
    return Progress(quiet=True)


@pytest.fixture
def project(tmp_path):
    """A folder with a recipe, its data next to it, and a run that was stopped after one step."""
    folder = tmp_path / "project"
    folder.mkdir()
    written(folder / "chats.jsonl", conversations(3))
    (folder / "shop.yaml").write_text("extends: demo\nsupervised: {data: chats.jsonl}\n")
    resolved = load_recipe(folder / "shop.yaml", [*TINY, *STAGES])
    train(resolved, folder / "runs" / "shop", progress=quiet())
    return folder


def test_a_folder_with_run_and_data_is_moved(project):
    expected = weights(project / "runs" / "shop")
    moved = project.rename(project.with_name("elsewhere"))
    run = moved / "runs" / "shop"
    cut_back(run)
    train(run, resume=True, progress=quiet())
    assert weights(run) == expected
    assert run_recipe(run).recipe.supervised.data.path == str(moved / "chats.jsonl")
    assert not read_changes(run)


def test_only_the_run_directory_is_moved(project, tmp_path):
    expected = weights(project / "runs" / "shop")
    run = (project / "runs" / "shop").rename(tmp_path / "shop")
    cut_back(run)
    train(run, resume=True, progress=quiet())
    assert weights(run) == expected


def test_data_is_moved_and_named(project):
    run = project / "runs" / "shop"
    expected = weights(run)
    cut_back(run)
    data = (project / "chats.jsonl").rename(project / "other.jsonl")
    train(run, resume=True, changes=[f"supervised.data.path={data}"], progress=quiet())
    assert weights(run) == expected
    assert not read_changes(run)
    assert run_recipe(run).recipe.supervised.data.path == str(data)  # the next time it is known


def test_the_recipe_file_continues_the_run_after_both_were_moved(project):
    moved = project.rename(project.with_name("elsewhere"))
    run = moved / "runs" / "shop"
    expected = weights(run)
    cut_back(run)
    train(load_recipe(moved / "shop.yaml", [*TINY, *STAGES]), run, resume=True, progress=quiet())
    assert weights(run) == expected


@pytest.mark.parametrize("named", [True, False])
def test_changed_content_is_reported_with_the_file(project, named):
    moved = project.rename(project.with_name("elsewhere"))
    run = moved / "runs" / "shop"
    cut_back(run)
    data = moved / "chats.jsonl"
    if named:
        data = data.rename(moved / "other.jsonl")
    data.write_text(data.read_text() + "\n")
    with pytest.raises(
        RunDirectoryError, match=rf"{data} \(supervised\.data\.path\) differs from the input that this run"
    ):
        train(run, resume=True, changes=[f"supervised.data.path={data}"] if named else [], progress=quiet())


@pytest.mark.parametrize("lora", [[], ["policy.lora={}"]], ids=["weights", "adapters"])
def test_a_model_is_moved(tmp_path, lora):
    if lora:
        pytest.importorskip("peft", reason="adapters need PEFT: pip install 'whetstone-rl[lora]'")
    torch.manual_seed(0)
    model = tmp_path / "model"
    model.mkdir()
    save_policy(assemble(load_recipe("demo", [*TINY, *STAGES])).policy, model)
    recipe = load_recipe("demo", [*STAGES, "policy.tiny=null", f"policy.path={model}", *lora])
    run = tmp_path / "run"
    train(recipe, run, progress=quiet())
    expected = weights(run)
    cut_back(run)
    other = model.rename(tmp_path / "models-elsewhere")
    train(run, resume=True, changes=[f"policy.path={other}"], progress=quiet())
    assert weights(run) == expected
    assert run_inputs(run) == input_digests(run_recipe(run))
    cut_back(run)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "note": "changed"}))
    with pytest.raises(
        RunDirectoryError, match=r"models-elsewhere \(policy\.path\) differs from the input that this run"
    ):
        train(run, resume=True, progress=quiet())


REWARD = """
def paid(trajectory, task):
    return 1.0
"""


def test_moved_code_is_found_from_the_run_directory_if_its_content_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "_searched", [])
    project, cwd = tmp_path / "project", tmp_path / "cwd"
    project.mkdir()
    cwd.mkdir()
    (project / "moved_reward.py").write_text(REWARD)
    (project / "shop.yaml").write_text('extends: demo\nreward: "moved_reward:paid"\nablations: null\n')
    few = [*SMALL, "supervised=null", "reinforcement.steps=1", "evaluation.episodes=2"]
    done = whetstone("train", project / "shop.yaml", *few, "--run-dir", project / "runs" / "shop", cwd=cwd)
    assert done.returncode == 0, done.stderr
    run = project.rename(tmp_path / "elsewhere") / "runs" / "shop"
    done = whetstone("evaluate", run, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert whetstone("train", run, "--resume", cwd=cwd).returncode == 0
    with open(tmp_path / "elsewhere" / "moved_reward.py", "a") as file:
        file.write("# edited\n")
    monkeypatch.setattr(plugins, "_searched", [])
    refused = whetstone("evaluate", run, cwd=cwd)
    assert refused.returncode == 2
    assert "reward \"moved_reward:paid\": No module named 'moved_reward'; run the command in" in refused.stderr
    assert "PYTHONPATH" in refused.stderr
