"""Names of the Hugging Face hub: fetched once, pinned to a commit, and said plainly where they cannot be had."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests_hub import COMMIT, hub_of
from tests_small import SMALL
from whetstone.errors import RecipeError
from whetstone.policies import build_tiny, is_hub_name, save_policy
from whetstone.recipe import load_recipe
from whetstone.training import pinned as pinning

NAME = "somebody/small"


def typed(words, *, cwd, endpoint):
    """A command in a process of its own: the hub's address is read when its library is loaded."""
    given = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(cwd / "home"), "HF_HUB_DISABLE_XET": "1"}
    given |= {"WHETSTONE_MODELS": str(cwd / "models"), "HF_HUB_ETAG_TIMEOUT": "2"}
    return subprocess.run(
        [sys.executable, "-m", "whetstone.cli.main", *words],
        capture_output=True, text=True, cwd=cwd, env=given, check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.slow
def test_a_run_is_pinned_to_the_commit_that_the_name_meant(tmp_path):
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
        for path, more, said in (
            ("somebody/none", [], "somebody/none: neither a folder here nor a model on the Hugging Face hub"),
            (NAME, ["policy.revision=v9"], f'{NAME}: the Hugging Face hub has no revision "v9" of it'),
        ):
            refused = typed(["rollout", "demo", "policy.tiny=null", f"policy.path={path}", *more], cwd=tmp_path,
                            endpoint=address)  # fmt: skip
            assert refused.returncode == 2, refused.stderr
            assert said in refused.stderr
        assert (done := typed(words, cwd=tmp_path, endpoint=address)).returncode == 0, done.stderr
    assert load_recipe(tmp_path / "run" / "recipe.yaml").recipe.policy.revision == COMMIT
    # without a network: what was fetched is there, what was not is one line
    again = typed([*words, "--resume"], cwd=tmp_path, endpoint=nowhere)
    assert again.returncode == 0, again.stderr
    shown = typed(["rollout", "demo", "policy.tiny=null", f"policy.path={NAME}", "-n", "1"], cwd=tmp_path,
                  endpoint=nowhere)  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    refused = typed(["train", "demo", "policy.tiny=null", "policy.path=somebody/else"], cwd=tmp_path, endpoint=nowhere)
    assert refused.returncode == 2
    *_, line = refused.stderr.strip().splitlines()  # after the notice that PyTorch is being loaded
    assert refused.stderr.count("\n") == 2
    assert "somebody/else: no such folder here, and the Hugging Face hub cannot be reached to fetch it" in line
    assert "do it once with a network, or name a model folder" in line


def test_a_misspelt_folder_is_no_name_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "tuned").mkdir(parents=True)
    assert is_hub_name("Qwen/Qwen3-0.6B")
    assert is_hub_name("Qwen/Qwen3-0.6B@refs/pr/1")
    for path in ("models/tunde", "tuned", "./models", "/models/tuned", "a/b/c", "../x/y", "~/x"):
        assert not is_hub_name(path), path


def test_models_of_other_seats_are_pinned_behind_their_names(tmp_path, monkeypatch):
    meant = iter("ab")
    monkeypatch.setattr(pinning, "found_model", lambda name, **_: Path(next(meant)))
    monkeypatch.chdir(tmp_path)
    seats = {"rollout.strategy": {"name": "independent", "frozen": {"seller": "some/seller", "buyer": "here"}}}
    recipe = load_recipe("demo").with_changes({"teacher": {"path": "some/teacher"}, **seats})
    (tmp_path / "run").mkdir()
    began = pinning.pin_choices(recipe, tmp_path / "run", resume=False)
    assert began.recipe.teacher.path == "some/teacher@a"
    assert began.recipe.rollout.strategy.options["frozen"] == {"seller": "some/seller@b", "buyer": "here"}
    (tmp_path / "run" / "recipe.yaml").write_text(began.dump())
    assert pinning.pin_choices(recipe, tmp_path / "run", resume=True).recipe == began.recipe  # nobody is asked again


def test_a_revision_of_what_has_none_is_refused():
    with pytest.raises(RecipeError, match=r"policy\.revision: has no effect: only a model of the Hugging Face hub"):
        load_recipe("demo", ["policy.revision=main"])
