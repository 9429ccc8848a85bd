"""Models of the Hugging Face hub are downloaded once and pinned to a commit; errors are one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.hub import COMMIT, hub_of
from support.small import SMALL
from whetstone.errors import RecipeError
from whetstone.policies import build_tiny, is_hub_name, save_policy
from whetstone.recipe import load_recipe
from whetstone.training import model_revisions as pinning

NAME = "somebody/small"


def run_command(words, *, cwd, endpoint):
    """Run a command in a new process, because the hub library reads its address on import."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(cwd / "home"), "HF_HUB_DISABLE_XET": "1"}
    environment |= {"WHETSTONE_MODELS": str(cwd / "models"), "HF_HUB_ETAG_TIMEOUT": "2"}
    return subprocess.run(
        [sys.executable, "-m", "whetstone.cli.main", *words],
        capture_output=True, text=True, cwd=cwd, env=environment, check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.slow
def test_run_is_pinned_to_the_commit_of_the_revision(tmp_path):
    (tmp_path / "published").mkdir()
    save_policy(build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16), tmp_path / "published")
    nowhere = "http://127.0.0.1:9"
    train = [
        "train",
        "demo",
        *SMALL,
        "ablations=null",
        "supervised.steps=1",
        "reinforcement.steps=1",
        "policy.tiny=null",
    ]
    words = [*train, f"policy.path={NAME}", "--run-dir", "run"]
    with hub_of(tmp_path / "published", NAME) as address:
        for path, more, message in (
            ("somebody/none", [], "somebody/none: neither a local folder nor a model on the Hugging Face hub"),
            (NAME, ["policy.revision=v9"], f'{NAME}: the Hugging Face hub has no revision "v9" of it'),
        ):
            refused = run_command(["rollout", "demo", "policy.tiny=null", f"policy.path={path}", *more], cwd=tmp_path,
                            endpoint=address)  # fmt: skip
            assert refused.returncode == 2, refused.stderr
            assert message in refused.stderr
        assert (done := run_command(words, cwd=tmp_path, endpoint=address)).returncode == 0, done.stderr
    assert load_recipe(tmp_path / "run" / "recipe.yaml").recipe.policy.revision == COMMIT
    # without a network: cached models are found, others are one line
    resumed = run_command([*words, "--resume"], cwd=tmp_path, endpoint=nowhere)
    assert resumed.returncode == 0, resumed.stderr
    rolled_out = run_command(["rollout", "demo", "policy.tiny=null", f"policy.path={NAME}", "-n", "1"], cwd=tmp_path,
                  endpoint=nowhere)  # fmt: skip
    assert rolled_out.returncode == 0, rolled_out.stderr
    refused = run_command(
        ["train", "demo", "policy.tiny=null", "policy.path=somebody/else"], cwd=tmp_path, endpoint=nowhere
    )
    assert refused.returncode == 2
    *_, line = refused.stderr.strip().splitlines()  # after the notice that PyTorch is being loaded
    assert refused.stderr.count("\n") == 2
    assert "somebody/else: no such local folder, and the Hugging Face hub cannot be reached" in line
    assert "download it once with a network, or set a model folder" in line


def test_misspelled_folder_is_not_a_hub_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "tuned").mkdir(parents=True)
    assert is_hub_name("Qwen/Qwen3-0.6B")
    assert is_hub_name("Qwen/Qwen3-0.6B@refs/pr/1")
    for path in ("models/tunde", "tuned", "./models", "/models/tuned", "a/b/c", "../x/y", "~/x"):
        assert not is_hub_name(path), path


def test_judge_and_teacher_models_are_pinned_after_their_names(tmp_path, monkeypatch):
    meant = iter("ab")
    monkeypatch.setattr(pinning, "resolve_model_folder", lambda name, **_: Path(next(meant)))
    monkeypatch.chdir(tmp_path)
    seats = {"rollout.strategy": {"name": "independent", "frozen": {"seller": "some/seller", "buyer": "here"}}}
    recipe = load_recipe("demo").with_changes({"teacher": {"path": "some/teacher"}, **seats})
    (tmp_path / "run").mkdir()
    began = pinning.pin_choices(recipe, tmp_path / "run", resume=False)
    assert began.recipe.teacher.path == "some/teacher@a"
    assert began.recipe.rollout.strategy.options["frozen"] == {"seller": "some/seller@b", "buyer": "here"}
    (tmp_path / "run" / "recipe.yaml").write_text(began.dump())
    assert pinning.pin_choices(recipe, tmp_path / "run", resume=True).recipe == began.recipe  # without another request


def test_revision_of_a_local_folder_is_refused():
    with pytest.raises(RecipeError, match=r"policy\.revision: has no effect: only a model of the Hugging Face hub"):
        load_recipe("demo", ["policy.revision=main"])
