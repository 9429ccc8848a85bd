"""Importers of TRL and verl: every key is reported, the recipe is valid, and names of other libraries are known."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.cli import whetstone
from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe
from whetstone.recipe.importers.names import _LIBRARIES
from whetstone.recipe.importers.reading import read_config
from whetstone.recipe.importers.translation import LIBRARIES, STATUSES, translate_config

DEFAULTS = json.loads((Path(__file__).parent / "library_keys.json").read_text(encoding="utf-8"))
"""Keys of TRL's GRPOConfig, RLOOConfig and ModelConfig, and of verl's ppo_trainer.yaml, with their defaults."""
TRL = {
    "model_name_or_path": "Qwen/Qwen3-0.6B", "learning_rate": 1e-6, "num_generations": 4, "beta": 0.04, "epsilon": 0.2,
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "epsilon_high": 0.28, "loss_type": "dr_grpo",
    "max_completion_length": 512, "scale_rewards": False, "mask_truncated_completions": True, "max_steps": 7,
    "output_dir": "x", "dataset_name": "a/b", "frobnicate": 3, "num_iterations": 2, "lr_scheduler_type": "cosine",
}  # fmt: skip
VERL = """
algorithm: {adv_estimator: gae, gamma: 0.9, lam: 0.95}
data: {train_files: [train.parquet], val_files: test.parquet, train_batch_size: 64, max_response_length: 300}
actor_rollout_ref:
  model: {path: Qwen/Qwen3-0.6B, lora_rank: 0}
  actor: {optim: {lr: 2.0e-6}, ppo_mini_batch_size: 16, clip_ratio_low: 0.2, clip_ratio_high: 0.3, use_kl_loss: true,
          kl_loss_coef: 0.01, kl_loss_type: low_var_kl, loss_agg_mode: token-mean, entropy_coeff: 0}
  rollout: {n: 5, name: vllm, dtype: bfloat16, tensor_model_parallel_size: 2,
            multi_turn: {enable: true, max_assistant_turns: 6}}
critic: {enable: null}
trainer: {total_training_steps: 9, total_epochs: 2, logger: [console, wandb], critic_warmup: 0, n_gpus_per_node: 8}
"""
SCRIPT = """
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

dataset = load_dataset("openai/gsm8k", "main", split="train")
dataset = dataset.map(lambda row: row)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")


def short(completions, **kwargs):
    return [-float(len(each)) for each in completions]


args = GRPOConfig("out", beta=0.04, bf16=True, use_vllm=True, report_to=["wandb"], delta=None, max_steps=20)
adapters = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj"], lora_dropout=0.05)
GRPOTrainer(model=model, reward_funcs=[short], train_dataset=dataset, args=args, peft_config=adapters).train()
"""
SHELL = """
set -x
MODEL=Qwen/Qwen3-0.6B
size=${SIZE:-64}
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=$HOME/data/train.parquet data.train_batch_size=$size \\
    actor_rollout_ref.model.path=$MODEL actor_rollout_ref.actor.ppo_mini_batch_size=32 \\
    +actor_rollout_ref.rollout.n=5 trainer.logger='["console","wandb"]' trainer.total_epochs=$UNKNOWN "$@"
"""


def written(folder, name, text):
    (folder / name).write_text(text)
    return folder / name


def read(kind, folder, name, text):
    return translate_config(kind, read_config(kind, written(folder, name, text)))


def keys_with(result, status):
    return [entry.key for entry in result.entries if entry.status == status]


def test_trl_config_gives_the_same_recipe_from_yaml_json_and_python(tmp_path):
    python = f"from trl import GRPOConfig\nargs = GRPOConfig({', '.join(f'{k}={v!r}' for k, v in TRL.items())})\n"
    texts = {"a.json": json.dumps(TRL), "a.yaml": json.dumps(TRL), "a.py": python, "b.py": f"config = {TRL!r}\n"}
    one, *others = [read("trl", tmp_path, name, text) for name, text in texts.items()]
    assert all(other == one for other in others)
    recipe = load_recipe(one.to_nested_keys()).recipe
    # 8 episodes x 4 accumulated / 4 per task; 7 optimizer steps, 2 per generation
    assert (recipe.reinforcement.tasks_per_step, recipe.reinforcement.steps) == (8, 4)
    assert (recipe.rollout.group_size, recipe.reinforcement.reference_kl) == (4, 0.04)
    assert recipe.reinforcement.reference_estimator == "k3"
    assert (one.recipe["objective.clip_low"], one.recipe["objective.clip_high"]) == (0.2, 0.28)
    assert (one.recipe["aggregation.mode"], one.recipe["aggregation.tokens"]) == ("constant", 512)
    assert one.recipe["advantage.scale"] is False


def test_every_number_of_optimizer_steps_is_converted_with_its_reason(tmp_path):
    keys = {**TRL, "max_steps": 200, "save_steps": 100, "eval_steps": 0.05}
    result = read("trl", tmp_path, "a.json", json.dumps(keys))
    settings = load_recipe(result.to_nested_keys()).recipe
    # num_iterations 2: 200 / 2, 100 / 2, 5 % of 200 are 10 / 2
    assert (settings.reinforcement.steps, settings.reinforcement.checkpoint_interval_steps) == (100, 50)
    assert settings.evaluation.interval_steps == 5
    line = next(line for line in result.format_entries("translated") if line.startswith("save_steps"))
    assert line.endswith("checkpoint_interval_steps: 50: 100 optimizer steps, 2 per step of a recipe")
    without = translate_config("trl", {"save_steps": 0.5})
    assert "save_steps" in keys_with(without, "missing")


def test_batch_of_a_device_is_multiplied_by_the_processes_of_the_command(tmp_path):
    script = "accelerate launch --num_processes 8 train.py --per_device_train_batch_size 4 --num_generations 8{}\n"
    result = read("trl", tmp_path, "a.sh", script.format(""))
    assert result.recipe["reinforcement.tasks_per_step"] == 4  # 4 x 8 / 8
    assert "num_processes: 8: with per_device_train_batch_size" in result.format_entries("translated")
    # generation_batch_size counts the episodes of all processes: 64 / 8, in 64 / (4 x 8) updates
    result = read("trl", tmp_path, "a.sh", script.format(" --generation_batch_size 64"))
    assert result.recipe["reinforcement.tasks_per_step"] == 8
    assert result.recipe["reinforcement.minibatches"] == 2
    (line,) = translate_config("trl", {"per_device_train_batch_size": 8}).format_entries("translated")
    assert "8 episodes / 8 per task on one process; with several, multiply tasks_per_step" in line


@pytest.mark.parametrize(
    ("files", "status", "text"),
    [
        ('"shop.jsonl"', "translated", '→ tasks.source: "jsonl", tasks.path: "shop.jsonl"'),
        ('["shop.jsonl"]', "translated", '→ tasks.source: "jsonl", tasks.path: "shop.jsonl"'),
        ('{"train": "shop.jsonl", "test": "b.jsonl"}', "translated", 'tasks.path: "shop.jsonl"'),
        ('"shop.csv"', "missing", "tasks: {source: file, path: shop.csv, columns: {"),
        ('"https://example.org/shop.jsonl"', "missing", "save it with"),
        ("files", "missing", "save it with"),
    ],
)
def test_local_file_of_a_trl_script_becomes_the_task_source(tmp_path, files, status, text):
    script = SCRIPT.replace('"openai/gsm8k", "main"', f'"json", data_files={files}')
    result = read("trl", tmp_path, "train.py", script)
    (line,) = [line for line in result.format_entries(status) if line.startswith("train_dataset")]
    assert text in line
    load_recipe(result.to_nested_keys())


@pytest.mark.parametrize(
    ("kind", "expected"), [("low_var_kl", "k3"), ("k3", "k3"), ("mse", "k2"), ("low_var_kl+", "k3_as_k2")]
)
def test_kl_of_verl_keeps_its_estimate(tmp_path, kind, expected):
    result = read("verl", tmp_path, "a.yaml", VERL.replace("low_var_kl", kind))
    assert load_recipe(result.to_nested_keys()).recipe.reinforcement.reference_estimator == expected


def test_kl_without_counterpart_is_reported(tmp_path):
    result = read("verl", tmp_path, "a.yaml", VERL.replace("low_var_kl", "abs"))
    assert "reinforcement.reference_kl" not in result.recipe
    assert "actor_rollout_ref.actor.kl_loss_type" in keys_with(result, "missing")


def test_moving_reference_is_translated_if_it_is_enabled(tmp_path):
    moving = read("trl", tmp_path, "a.json", json.dumps({**TRL, "sync_ref_model": True, "ref_model_sync_steps": 64}))
    settings = load_recipe(moving.to_nested_keys()).recipe.reinforcement
    # 64 optimizer steps, 2 per step of a recipe
    assert (settings.reference_sync_steps, settings.reference_mixup_alpha) == (32, 0.6)
    still = read("trl", tmp_path, "b.json", json.dumps({**TRL, "sync_ref_model": False, "ref_model_sync_steps": 64}))
    assert "reinforcement.reference_sync_steps" not in still.recipe
    assert keys_with(still, "no effect") == ["output_dir", "ref_model_sync_steps"]


def test_clip_without_effect_is_reported_and_left_out(tmp_path):
    result = read("trl", tmp_path, "a.json", json.dumps({**TRL, "num_iterations": 1}))
    assert not [path for path in result.recipe if path.startswith("objective.clip")]
    (line,) = [line for line in result.format_entries("no effect") if line.startswith("epsilon: 0.2")]
    assert "every ratio is 1" in line
    assert "objective.clip" in line
    assert not [entry for entry in result.entries if entry.status == "translated" and not entry.recipe]


def test_arguments_of_a_trl_script_are_translated_or_reported(tmp_path):
    result = read("trl", tmp_path, "train.py", SCRIPT)
    recipe = load_recipe(result.to_nested_keys()).recipe
    assert (recipe.policy.path, recipe.policy.dtype, recipe.engine.name) == ("Qwen/Qwen3-0.6B", "bfloat16", "vllm")
    assert (recipe.policy.lora.rank, recipe.policy.lora.target_modules) == (8, ["q_proj"])
    assert [tracker.name for tracker in recipe.trackers] == ["wandb"]
    missing = result.format_entries("missing")
    assert [line.partition(":")[0] for line in missing] == ["reward_funcs", "train_dataset", "peft_config.lora_dropout"]
    assert "[short]" in missing[0]
    assert "openai/gsm8k: " in missing[1].replace('"', "")
    assert "save_to_disk" in missing[1]
    assert "delta" in keys_with(result, "off")
    # defaults of TRL that a recipe does not share
    assert recipe.rollout.max_new_tokens == 512
    assert keys_with(result, "to set") == ["tasks.source", "reward"]


@pytest.mark.parametrize(
    ("kind", "keys", "default", "expected"),
    [
        ("trl", {"importance_sampling_level": "sequence", "num_iterations": 2}, "epsilon",
         {"objective.clip_low": 0.2, "objective.clip_high": 0.2}),
        ("trl", {"peft_config.use_dora": False}, "peft_config.lora_alpha", {"policy.lora.alpha": 8}),
        ("trl", {"peft_config.use_dora": False}, "peft_config.r", {"policy.lora.rank": 8}),
        ("trl", {"num_iterations": 2}, "epsilon", None),  # a recipe has the same default
        ("verl", {"actor_rollout_ref.model.lora_rank": 4}, "actor_rollout_ref.model.lora_alpha",
         {"policy.lora.alpha": 16}),
        ("verl", {"actor_rollout_ref.model.path": "x"}, "actor_rollout_ref.model.lora_alpha", None),
        ("verl", {"algorithm.adv_estimator": "grpo"}, "actor_rollout_ref.actor.clip_ratio_c",
         {"objective.dual_clip": 3.0}),
        ("verl", {"actor_rollout_ref.actor.policy_loss.loss_mode": "gspo", "algorithm.adv_estimator": "grpo"},
         "actor_rollout_ref.actor.clip_ratio", {"objective.clip_low": 0.2, "objective.clip_high": 0.2}),
    ],
)  # fmt: skip
def test_defaults_that_differ_from_those_of_a_recipe_are_imported_and_reported(kind, keys, default, expected):
    result = translate_config(kind, keys)
    recipes = [entry.recipe for entry in result.entries if entry.key == f"{default} (default)"]
    assert len(recipes) == (expected is not None)
    for recipe in recipes:
        assert expected.items() <= recipe.items()
        assert expected.items() <= result.recipe.items()
    load_recipe(result.to_nested_keys())


def test_yaml_of_verl_becomes_a_recipe(tmp_path):
    result = read("verl", tmp_path, "a.yaml", VERL)
    recipe = load_recipe(result.to_nested_keys()).recipe
    assert (recipe.reinforcement.minibatches, recipe.rollout.group_size, recipe.environment.max_turns) == (4, 5, 6)
    assert (recipe.reinforcement.reference_kl, recipe.reinforcement.reference_estimator) == (0.01, "k3")
    assert (recipe.advantage.name, result.recipe["advantage.trace"]) == ("token_gae", 0.95)
    assert recipe.tasks.options == {"path": "train.parquet", "held_out": "test.parquet", "format": "verl"}
    assert (recipe.engine.name, recipe.policy.dtype) == ("vllm", "bfloat16")
    # 8 GPUs are 4 replicas of 2
    assert (recipe.scale.backend, recipe.scale.tensor_parallel, recipe.scale.engine_replicas) == ("local-ray", 2, 4)
    assert [tracker.name for tracker in recipe.trackers] == ["wandb"]
    assert keys_with(result, "missing") == ["trainer.total_epochs"]
    translated = result.format_entries("translated")
    assert 'data.val_files: "test.parquet" → tasks.held_out: "test.parquet"' in translated
    assert "algorithm.lam: 0.95: with algorithm.adv_estimator" in translated
    assert {"actor_rollout_ref.actor.entropy_coeff", "critic.enable"} <= set(keys_with(result, "off"))


@pytest.mark.parametrize(
    ("keys", "key", "status", "note"),
    [
        # the key that is read with another one has the status of that key
        ({"data.train_files": "a.parquet", "data.prompt_key": "q"}, "data.prompt_key", "translated", "with data.train"),
        ({"data.train_files": ["a", "b"], "data.prompt_key": "q"}, "data.prompt_key", "missing", "data.train_files"),
        ({"data.train_files": ["a", "b"], "data.val_files": "c"}, "data.val_files", "missing", "join the files"),
        ({"data.train_files": "a.parquet", "data.val_files": "c.jsonl"}, "data.val_files", "missing", "the format of"),
        ({"algorithm.gamma": 0.9, "algorithm.adv_estimator": "grpo"}, "algorithm.gamma", "no effect", "no critic"),
        # values that a recipe has without a key
        ({"actor_rollout_ref.rollout.tensor_model_parallel_size": 1},
         "actor_rollout_ref.rollout.tensor_model_parallel_size", "no effect", "a recipe does the same"),
    ],
)  # fmt: skip
def test_status_of_a_key_of_verl_is_that_of_its_translation(keys, key, status, note):
    (entry,) = [entry for entry in translate_config("verl", keys).entries if entry.key == key]
    assert (entry.status, note in entry.note) == (status, True)


def test_command_line_of_verl_in_a_shell_script_becomes_a_recipe(tmp_path):
    result = read("verl", tmp_path, "run.sh", SHELL)
    recipe = load_recipe(result.to_nested_keys()).recipe
    assert (recipe.policy.path, recipe.reinforcement.tasks_per_step) == ("Qwen/Qwen3-0.6B", 64)
    assert (recipe.rollout.group_size, recipe.reinforcement.minibatches) == (5, 2)
    assert recipe.tasks.options["path"] == str(Path.home() / "data/train.parquet")
    (missing,) = result.format_entries("missing")
    assert missing.startswith("trainer.total_epochs: $UNKNOWN: a run is counted in steps: reinforcement.steps")


def test_command_line_in_the_docstring_of_a_trl_script_is_read(tmp_path):
    script = '"""\naccelerate launch \\\n  x.py --model_name_or_path a/b --num_generations 4 --use_vllm\n"""\n'
    result = read("trl", tmp_path, "a.py", script + "GRPOTrainer(model=args.model_name_or_path, args=args)\n")
    assert (result.recipe["policy.path"], result.recipe["rollout.group_size"]) == ("a/b", 4)
    assert result.recipe["engine.name"] == "vllm"


# ------------------------------------------------------------ completeness


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 5), st.floats(0, 2), st.sampled_from(["none", "auto", "x", "${a.b}"]),
    st.just([]), st.just(["a"]), st.just({}),
)  # fmt: skip


def assert_report_is_complete(kind, keys):
    """Check that each key is on one line, and that the recipe can be loaded."""
    result = translate_config(kind, keys)
    assert [entry.key for entry in result.entries][: len(keys)] == list(keys)
    assert len(result.format_entries(*STATUSES)) == len(result.entries)
    load_recipe(result.to_nested_keys())
    reported = {
        path for entry in result.entries for path in ([entry.key] if entry.status == "to set" else entry.recipe)
    }
    assert set(result.recipe) - reported == set() or set(result.recipe) - reported == {"tasks.path"}
    return result


@pytest.mark.parametrize("kind", ["trl", "verl"])
@given(data=st.data())
def test_any_keys_with_any_values_give_a_valid_recipe_and_a_complete_report(kind, data):
    names = st.sampled_from(sorted({*DEFAULTS[kind], *LIBRARIES[kind].rules}))
    assert_report_is_complete(kind, data.draw(st.dictionaries(names, VALUES, max_size=8)))


@pytest.mark.parametrize("kind", ["trl", "verl"])
@given(data=st.data())
def test_any_change_of_the_defaults_is_reported(kind, data):
    changed = data.draw(st.dictionaries(st.sampled_from(sorted(DEFAULTS[kind])), VALUES, max_size=4))
    assert_report_is_complete(kind, {**DEFAULTS[kind], **changed})


@pytest.mark.parametrize(
    ("kind", "missing"),
    [("trl", ["num_train_epochs (default)"]), ("verl", ["data.max_prompt_length", "trainer.total_epochs"])],
)
def test_defaults_of_a_library_are_missing_only_if_they_change_what_is_learned(kind, missing):
    assert keys_with(assert_report_is_complete(kind, DEFAULTS[kind]), "missing") == missing


def test_training_arguments_of_transformers_are_known():
    dataclasses = pytest.importorskip("dataclasses")
    transformers = pytest.importorskip("transformers")
    known = {
        field.name: None if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(transformers.TrainingArguments)
    }
    missing = keys_with(assert_report_is_complete("trl", known), "missing")
    assert set(missing) <= {"num_train_epochs", "include_num_input_tokens_seen", "label_smoothing_factor"}


def test_unknown_key_is_missing_and_never_dropped():
    for kind in LIBRARIES:
        assert keys_with(translate_config(kind, {"frobnicate": 3}), "missing")[0] == "frobnicate"


# ------------------------------------------------------------ messages


@pytest.mark.parametrize(
    ("kind", "name", "text", "message"),
    [
        ("trl", "a.yaml", VERL, "looks like one of verl: whetstone import verl"),
        ("trl", "a.yaml", "learning_rat: 1", "did you mean .learning_rate"),
        ("trl", "a.yaml", "- 1", "a mapping of keys is expected"),
        ("trl", "a.py", "x = (", "not Python"),
        ("trl", "a.py", "x = 1", "no GRPOConfig"),
        ("verl", "a.sh", "echo 1", "no key of a configuration of verl"),
    ],
)
def test_wrong_file_gets_one_line(tmp_path, kind, name, text, message):
    with pytest.raises(RecipeError, match=message) as error:
        read_config(kind, written(tmp_path, name, text))
    assert "\n" not in str(error.value)
    with pytest.raises(RecipeError, match="no such file"):
        read_config(kind, tmp_path / "none")


def test_command_writes_a_recipe_that_is_read(tmp_path):
    file, out = written(tmp_path, "a.json", json.dumps(TRL)), tmp_path / "recipe.yaml"
    done = whetstone("import", "trl", str(file), "--output", str(out), cwd=tmp_path)
    assert done.returncode == 0
    assert "missing    frobnicate: 3: no counterpart" in done.stdout
    assert "whetstone doctor" in done.stdout
    assert load_recipe(str(out)).recipe.rollout.max_new_tokens == 512


BASE = {"policy": {"tiny": {}}, "tasks": {"source": "arithmetic"}, "reward": "exact_number", "reinforcement": {}}


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("learning_rate", 1e-5, "set reinforcement.learning_rate=1e-05"),
        ("num_generations", 4, "set rollout.group_size=4 (num_generations of TRL)"),
        ("beta", 0.04, "set reinforcement.reference_kl=0.04, reinforcement.reference_estimator=k3 (beta of TRL)"),
        ("max_completion_length", 64, "set rollout.max_new_tokens=64 (max_completion_length of TRL)"),
        # 16 episodes are 2 tasks of 8
        ("per_device_train_batch_size", 16, "set reinforcement.tasks_per_step=2 (per_device_train_batch_size of TRL)"),
        ("kl_coef", 0.1, "set reinforcement.reference_kl=0.1 (kl_coef of TRL)"),
        ("clip_range", 0.2, "set objective.name=clipped, objective.clip_low=0.2, objective.clip_high=0.2"),
        ("temperature", 0.7, "set rollout.temperature=0.7"),
        ("lr", 1e-6, "set reinforcement.learning_rate=1e-06 (lr of verl)"),
        ("n_samples_per_prompt", 3, "set rollout.group_size=3 (n_samples_per_prompt of OpenRLHF)"),
        ("init_kl_coef", 0.01, "set reinforcement.reference_kl=0.01"),
        ("num_train_epochs", 2, "a run is counted in steps: reinforcement.steps"),
        ("report_to", "wandb", 'set trackers=["wandb"] (report_to of TRL)'),
        ("actor_rollout_ref", {"rollout": {"n": 4}}, "set rollout.group_size=4 (actor_rollout_ref of verl)"),
        ("trainer", {"total_epochs": 4}, "a run is counted in steps: reinforcement.steps"),
        ("steps", 5, "did you mean reinforcement.steps?"),
        ("group_size", 5, "did you mean rollout.group_size?"),
        ("learning_rat", 1.0, 'did you mean "reinforcement.learning_rate"?'),
        ("beta", None, "set reinforcement.reference_kl"),
    ],
)  # fmt: skip
def test_name_of_another_library_is_answered_with_its_counterpart(key, value, remedy):
    with pytest.raises(RecipeError) as error:
        load_recipe(BASE, **{key: value}) if value is not None else load_recipe({**BASE, key: value})
    assert f"{key}: no such key; {remedy}" in str(error.value)


def test_section_key_of_another_library_is_answered_too():
    with pytest.raises(RecipeError, match=r"rollout\.num_generations: no such key; set rollout\.group_size=4"):
        load_recipe(BASE, **{"rollout": {"num_generations": 4}})


def test_same_name_in_two_sections_of_the_recipe_names_both():
    with pytest.raises(RecipeError, match=r"set reinforcement\.learning_rate=1e-05 or supervised\.learning_rate"):
        load_recipe({**BASE, "supervised": {}}, learning_rate=1e-5)


def test_every_suggested_key_exists():
    """Each key that a rule sets is a key of a recipe, or an option of one of its parts."""
    open_sections = ("objective", "advantage", "tasks", "importance_correction", "environment", "engine", "chat")
    for library in _LIBRARIES:
        for key in library.rules:
            for path in library.target_keys(key):
                section, _, below = path.partition(".")
                if section in open_sections:
                    continue
                nested = {section: {below: "?"}} if below and "." not in below else {}
                assert "no such key" not in message_of({**BASE, **nested}), (library.name, key, path)


def message_of(keys):
    try:
        load_recipe(keys)
    except RecipeError as error:
        return str(error)
    return ""


def test_variables_of_a_script_have_their_defaults_and_home_is_resolved(tmp_path):
    script = (
        "MODEL=${MODEL:-Qwen/Qwen3-0.6B}\n"
        'python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path="$MODEL" '
        "data.train_files=$HOME/data/train.parquet data.val_files=~/data/test.parquet\n"
    )
    result = read("verl", tmp_path, "run.sh", script)
    assert result.recipe["tasks.held_out"] == "${HOME}/data/test.parquet"
    recipe = load_recipe(result.to_nested_keys()).recipe
    assert recipe.policy.path == "Qwen/Qwen3-0.6B"
    assert recipe.tasks.options["path"] == str(Path.home() / "data/train.parquet")


def test_reward_function_of_verl_has_its_name_in_a_recipe():
    keys = {"custom_reward_function.path": "rewards/sums.py", "custom_reward_function.name": "compute"}
    lines = [line for line in translate_config("verl", keys).format_entries("missing") if line.startswith("custom")]
    assert len(lines) == 2
    assert all(
        'copy sums.py into the folder of the recipe and name it: reward: "sums:compute"' in line for line in lines
    )


def test_existing_recipe_is_not_overwritten(tmp_path):
    output = tmp_path / "recipe.yaml"
    output.write_text("edited")
    (tmp_path / "trl.yaml").write_text("learning_rate: 1e-5\n")
    done = whetstone("import", "trl", "trl.yaml", "--output", "recipe.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr.strip()) == (
        2,
        "whetstone: --output: recipe.yaml exists already; choose another file, or delete it first",
    )
    assert output.read_text() == "edited"
