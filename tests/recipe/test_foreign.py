"""Configurations of TRL and verl as recipes: each key is accounted for, and what comes out is a recipe."""

import json

import pytest
from click.testing import CliRunner

from whetstone.cli.import_recipe import import_recipe
from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe
from whetstone.recipe.foreign import read_foreign, translate

TRL = {
    "model_name_or_path": "Qwen/Qwen3-0.6B", "learning_rate": 1e-6, "num_generations": 4, "beta": 0.04, "epsilon": 0.2,
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "epsilon_high": 0.28, "loss_type": "dr_grpo",
    "max_completion_length": 512, "scale_rewards": False, "mask_truncated_completions": True, "max_steps": 7,
    "output_dir": "x", "dataset_name": "a/b", "frobnicate": 3, "num_iterations": 2, "lr_scheduler_type": "cosine",
}  # fmt: skip
VERL = """
algorithm: {adv_estimator: gae, gamma: 0.9, lam: 0.95}
data: {train_files: [train.parquet], prompt_key: question, train_batch_size: 64, max_response_length: 300}
actor_rollout_ref:
  model: {path: Qwen/Qwen3-0.6B, lora_rank: 0}
  actor: {optim: {lr: 2.0e-6}, ppo_mini_batch_size: 16, clip_ratio_low: 0.2, clip_ratio_high: 0.3, use_kl_loss: true,
          kl_loss_coef: 0.01, loss_agg_mode: token-mean, entropy_coeff: 0}
  rollout: {n: 5, name: vllm, multi_turn: {enable: true, max_assistant_turns: 6}}
trainer: {total_training_steps: 9, total_epochs: 2, logger: [console]}
"""


def written(folder, name, text):
    (folder / name).write_text(text)
    return folder / name


def test_a_config_of_trl_means_the_same_from_yaml_json_and_python(tmp_path):
    python = f"from trl import GRPOConfig\nargs = GRPOConfig({', '.join(f'{k}={v!r}' for k, v in TRL.items())})\n"
    files = [written(tmp_path, "a.json", json.dumps(TRL)), written(tmp_path, "a.py", python)]
    files.append(written(tmp_path, "b.py", f"config = {TRL!r}\n"))
    one, *others = [translate("trl", read_foreign("trl", file)) for file in files]
    assert all(other == one for other in others)
    recipe = load_recipe(one.nested()).recipe
    assert recipe.reinforcement.tasks_per_step == 8 * 4 // 4
    assert (recipe.rollout.group_size, recipe.reinforcement.reference_kl, recipe.reinforcement.steps) == (4, 0.04, 7)
    assert one.recipe["objective.clip_high"] == 0.28
    assert (one.recipe["aggregation.mode"], one.recipe["aggregation.tokens"]) == ("constant", 512)
    assert one.recipe["advantage.scale"] is False


def test_a_reference_that_moves_along_does_so_here(tmp_path):
    moving = {**TRL, "sync_ref_model": True, "ref_model_sync_steps": 64}
    recipe = load_recipe(
        translate("trl", read_foreign("trl", written(tmp_path, "a.json", json.dumps(moving)))).nested()
    )
    settings = recipe.recipe.reinforcement
    assert (settings.reference_sync_steps, settings.reference_mixup_alpha) == (64, 0.6)
    still = {**TRL, "sync_ref_model": False, "ref_model_sync_steps": 64}
    found = translate("trl", read_foreign("trl", written(tmp_path, "b.json", json.dumps(still))))
    assert "reinforcement.reference_sync_steps" not in found.recipe
    assert not [line for line in found.missing if "ref_model" in line]


def test_every_key_is_on_a_line_and_what_has_no_counterpart_says_so(tmp_path):
    found = translate("trl", read_foreign("trl", written(tmp_path, "a.json", json.dumps(TRL))))
    assert len(found.translated) + len(found.missing) + len(found.unneeded) == len(TRL)
    assert found.unneeded == ['output_dir: "x"']
    assert found.missing[0].startswith('dataset_name: "a/b": put its rows into')
    assert found.missing[1] == "frobnicate: 3: no counterpart"


def test_a_clip_that_never_bites_is_said_to(tmp_path):
    once = {**TRL, "num_iterations": 1}
    found = translate("trl", read_foreign("trl", written(tmp_path, "a.json", json.dumps(once))))
    assert "epsilon: 0.2: each batch is learned from once, so nothing is clipped" in found.unneeded
    assert load_recipe(found.nested())


def test_a_yaml_of_verl_becomes_a_recipe(tmp_path):
    found = translate("verl", read_foreign("verl", written(tmp_path, "a.yaml", VERL)))
    recipe = load_recipe(found.nested()).recipe
    assert (recipe.reinforcement.minibatches, recipe.rollout.group_size, recipe.environment.max_turns) == (4, 5, 6)
    assert recipe.reinforcement.reference_kl == 0.01
    assert (recipe.advantage.name, found.recipe["advantage.trace"]) == ("token_gae", 0.95)
    assert found.recipe["tasks.prompt"] == "question"
    assert [line.partition(":")[0] for line in found.missing] == ["trainer.total_epochs"]


@pytest.mark.parametrize(
    ("kind", "name", "text", "said"),
    [
        ("trl", "a.yaml", VERL, "looks like one of verl: whetstone import verl"),
        ("trl", "a.yaml", "learning_rat: 1", "did you mean .learning_rate"),
        ("trl", "a.yaml", "- 1", "a mapping of keys is expected"),
        ("trl", "a.py", "x = (", "not Python"),
        ("trl", "a.py", "x = 1", "no GRPOConfig"),
    ],
)
def test_a_wrong_file_gets_one_line(tmp_path, kind, name, text, said):
    with pytest.raises(RecipeError, match=said) as error:
        read_foreign(kind, written(tmp_path, name, text))
    assert "\n" not in str(error.value)
    with pytest.raises(RecipeError, match="no such file"):
        read_foreign(kind, tmp_path / "none")


def test_the_command_writes_a_recipe_that_is_read(tmp_path):
    file, out = written(tmp_path, "a.json", json.dumps(TRL)), tmp_path / "recipe.yaml"
    said = CliRunner().invoke(import_recipe, ["trl", str(file), "--output", str(out)])
    assert said.exit_code == 0
    assert "missing    frobnicate: 3: no counterpart" in said.output
    assert load_recipe(str(out)).recipe.rollout.max_new_tokens == 512
