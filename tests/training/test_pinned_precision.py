"""Precisions that a run measures when it starts, stores in its recipe, and keeps when it is resumed elsewhere."""

import pytest
import torch

from whetstone.errors import WhetstoneError
from whetstone.policies import precision
from whetstone.recipe import load_recipe
from whetstone.record import run_recipe
from whetstone.reporting import Progress
from whetstone.training.model_revisions import pin_choices
from whetstone.training.run import train

QUIET = Progress(quiet=True)
LARGE = [
    "policy.tiny.hidden_size=768",
    "policy.tiny.num_layers=4",
    "policy.tiny.intermediate_size=2048",
    "policy.tiny.num_heads=4",
]


@pytest.fixture
def processor(monkeypatch):
    """Return a function that sets the time of a bfloat16 product relative to float32."""

    def set_ratio(ratio):
        monkeypatch.setattr(precision, "bfloat16_time_ratio", lambda: ratio)

    return set_ratio


def stored(recipe, folder):
    """Return the recipe as a new run in `folder` stores it."""
    pinned_recipe = pin_choices(recipe, folder, resume=False)
    folder.mkdir()
    (folder / "recipe.yaml").write_text(pinned_recipe.dump(), encoding="utf-8")
    return pinned_recipe


@pytest.mark.parametrize(("ratio", "dtype"), [(0.4, "bfloat16"), (17.0, "float32")])
def test_a_new_run_stores_the_faster_precision(ratio, dtype, processor, tmp_path):
    processor(ratio)
    recipe = stored(load_recipe("demo", LARGE), tmp_path / "run").recipe
    assert (recipe.supervised.optimizer, recipe.reinforcement.optimizer) == (f"muon_{dtype}",) * 2
    assert recipe.policy.dtype == dtype


def test_a_small_model_keeps_auto(processor, tmp_path):
    processor(0.4)
    assert stored(load_recipe("demo"), tmp_path / "run").recipe.policy.dtype == "auto"


def test_a_resume_on_another_processor_keeps_both(processor, tmp_path):
    processor(0.4)
    before = stored(load_recipe("demo", LARGE), tmp_path / "run")
    processor(17.0)
    assert pin_choices(load_recipe("demo", LARGE), tmp_path / "run", resume=True).recipe == before.recipe


def test_stages_of_a_chain_keep_the_precision_of_the_chain(processor, tmp_path):
    stages = "stages=[{supervised: {optimizer: muon, steps: 2}}, {reinforcement: {optimizer: muon, steps: 2}}]"
    recipe = load_recipe("demo", [stages, "ablations=null"])
    processor(17.0)
    before = stored(recipe, tmp_path / "run")
    optimizers = [settings["optimizer"] for stage in before.recipe.stages for settings in stage.values()]
    assert optimizers == ["muon_float32"] * 2
    processor(0.4)
    assert pin_choices(recipe, tmp_path / "run", resume=True).recipe == before.recipe


def test_a_precision_that_is_set_is_kept(processor, tmp_path):
    processor(0.4)
    changes = [*LARGE, "policy.dtype=float32", "supervised.optimizer=muon_float32", "reinforcement.optimizer=adamw"]
    recipe = stored(load_recipe("demo", changes), tmp_path / "run").recipe
    assert (recipe.policy.dtype, recipe.supervised.optimizer) == ("float32", "muon_float32")
    assert recipe.reinforcement.optimizer == "adamw"


def test_run_stored_without_precisions_is_read_as_bfloat16(processor, tmp_path):
    processor(17.0)
    (tmp_path / "recipe.yaml").write_text(load_recipe("demo").dump(), encoding="utf-8")
    assert run_recipe(tmp_path).recipe.supervised.optimizer == "muon_bfloat16"
    resumed = pin_choices(load_recipe("demo"), tmp_path, resume=True)
    assert resumed.recipe.reinforcement.optimizer == "muon_bfloat16"


def test_a_run_trains_and_resumes_in_the_stored_precision(processor, tmp_path):
    processor(17.0)
    recipe = load_recipe("demo", ["policy.tiny.hidden_size=16", "policy.tiny.intermediate_size=16", "ablations=null",
                                  "supervised.steps=1", "reinforcement.steps=1", "reinforcement.tasks_per_step=1",
                                  "rollout.group_size=2", "evaluation.episodes=1"])  # fmt: skip
    lines = []
    progress = Progress(quiet=True)
    progress.say = lines.append
    train(recipe, tmp_path / "run", progress=progress)
    expected = "optimizer: muon_float32 (faster here: float32 (a bfloat16 matrix product takes 17 times"
    assert sum(line.startswith(expected) for line in lines) == 1
    groups = [
        torch.load(path, weights_only=True)["optimizers"][-1]["param_groups"]
        for path in (tmp_path / "run" / "checkpoints").rglob("*.pt")
    ]
    assert all(group["iteration_dtype"] == "float32" for checkpoint in groups for group in checkpoint)
    processor(0.4)
    train(recipe, tmp_path / "run", resume=True, progress=QUIET)


def test_another_precision_than_the_stored_one_is_refused_on_resume(processor, tmp_path):
    processor(17.0)
    stored(load_recipe("demo"), tmp_path / "run")
    with pytest.raises(WhetstoneError, match=r"supervised\.optimizer is 'muon_float32' there and 'muon_bfloat16' here"):
        train(load_recipe("demo", ["supervised.optimizer=muon_bfloat16"]), tmp_path / "run", resume=True)
