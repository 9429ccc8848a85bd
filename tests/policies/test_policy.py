"""Policies in folders: full models, adapters with their base model, and folders that are refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM, MambaConfig, MambaForCausalLM, T5Config, ViTConfig

from whetstone.errors import PolicyError
from whetstone.policies import (
    Policy,
    adapters_off,
    add_adapters,
    build_tiny,
    freeze_parameters,
    load_policy,
    save_policy,
    without_adapters,
)

IDS = torch.arange(12).unsqueeze(0)


def small_policy():
    return build_tiny(["Compute 12"], hidden=16, heads=2, layers=2, intermediate=16, context_length=64, seed=3)


def with_adapters(policy, *, dora=False):
    """Add adapters with random nonzero weights to a policy."""
    add_adapters(policy.model, rank=4, alpha=8, target_modules="all-linear", dora=dora, seed=1)
    numbers = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter += 0.1 * torch.randn(parameter.shape, generator=numbers)
    return policy


@torch.no_grad()
def logits(model):
    return model(IDS).logits


@pytest.mark.parametrize("dora", [False, True])
def test_adapters_saved_and_loaded_repeatedly_are_the_same_policy(tmp_path, dora):
    policy = with_adapters(small_policy(), dora=dora)
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
        save_policy(policy, tmp_path / name)
        loaded = load_policy(tmp_path / name)
        assert torch.equal(logits(loaded.model), logits(policy.model))
        assert [p.shape for p in loaded.trainable_parameters()] == [p.shape for p in policy.trainable_parameters()]
        policy = loaded


def test_peft_loads_saved_adapters(tmp_path):
    policy = with_adapters(small_policy())
    save_policy(policy, tmp_path)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", local_files_only=True)
    assert torch.allclose(logits(PeftModel.from_pretrained(base, tmp_path)), logits(policy.model), atol=1e-6)


def test_adapters_reference_the_folder_of_their_base_model(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "tuned").mkdir()
    save_policy(small_policy(), tmp_path / "model")
    policy = with_adapters(load_policy(tmp_path / "model"))
    save_policy(policy, tmp_path / "tuned")
    assert not (tmp_path / "tuned" / "base").exists()
    assert torch.equal(logits(load_policy(tmp_path / "tuned").model), logits(policy.model))
    assert json.loads((tmp_path / "tuned" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        tmp_path / "model"
    )
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(PolicyError, match=r"the base model of its adapters, .*model, does not exist"):
        load_policy(tmp_path / "tuned")


def test_adapters_load_with_other_libraries_from_any_working_directory(tmp_path, monkeypatch):
    """Save as a run does: into a partial folder that is renamed when it is complete."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    save_policy(small_policy(), tmp_path / "model")
    for name, policy in (("own", with_adapters(small_policy())), ("tuned", with_adapters(load_policy("model")))):
        (tmp_path / f".{name}.partial").mkdir()
        save_policy(policy, tmp_path / f".{name}.partial", at=Path(name))
        (tmp_path / f".{name}.partial").rename(tmp_path / name)
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "elsewhere")
        for kind in (AutoModelForCausalLM, AutoPeftModelForCausalLM):
            loaded = kind.from_pretrained(tmp_path / name, local_files_only=True)
            assert torch.allclose(logits(loaded), logits(policy.model), atol=1e-6), (name, kind)
        assert json.loads((tmp_path / name / "adapter_config.json").read_text())["task_type"] == "CAUSAL_LM"
        monkeypatch.chdir(tmp_path)
    # adapters that were moved with their base model are loaded
    (tmp_path / "own").rename(tmp_path / "moved")
    assert load_policy(tmp_path / "moved").parameters > 0


@pytest.mark.parametrize("dora", [False, True])
def test_merged_weights_compute_the_logits_of_the_adapters(tmp_path, dora):
    policy = with_adapters(small_policy(), dora=dora)
    merged = without_adapters(policy.model, merge=True)
    assert torch.allclose(logits(merged), logits(policy.model), atol=1e-5)
    (tmp_path / "merged").mkdir()
    save_policy(Policy(merged, policy.tokenizer), tmp_path / "merged")
    assert torch.allclose(logits(load_policy(tmp_path / "merged").model), logits(policy.model), atol=1e-5)


def test_model_without_adapters_is_the_base_model():
    plain = small_policy()
    policy = with_adapters(small_policy())
    assert torch.equal(logits(without_adapters(policy.model, merge=False)), logits(plain.model))
    with adapters_off(policy.model):
        assert torch.equal(logits(policy.model), logits(plain.model))
    assert not torch.allclose(logits(policy.model), logits(plain.model), atol=1e-3)


def test_adapters_on_layers_that_do_not_exist_are_refused_with_the_nearest():
    with pytest.raises(PolicyError, match='no layer is named "q_prj"; did you mean "q_proj"'):
        add_adapters(small_policy().model, rank=4, alpha=8, target_modules=["q_prj"], dora=False, seed=0)


def adapted_layers(target_modules):
    """Return the paths of the layers of a model of two blocks that have adapters."""
    policy = build_tiny(["x"], hidden=16, heads=2, layers=2, intermediate=16, context_length=64)
    add_adapters(policy.model, rank=2, alpha=4, target_modules=target_modules, dora=False, seed=0)
    return {name.partition(".lora_A")[0] for name, _ in policy.model.named_parameters() if ".lora_A" in name}


def test_target_modules_are_those_of_peft():
    every = [f"model.layers.{n}.self_attn.q_proj" for n in range(2)]
    assert adapted_layers(["q_proj"]) == adapted_layers("q_proj") == adapted_layers(["self_attn.q_proj"]) == {*every}
    assert adapted_layers(r".*\.q_proj") == adapted_layers(r".*q_pro.") == {*every}
    assert adapted_layers(r".*layers\.1\..*q_proj") == adapted_layers(["layers.1.self_attn.q_proj"]) == {every[1]}
    assert {*every} < adapted_layers("all-linear")


@pytest.mark.parametrize(
    ("target_modules", "problem"),
    [
        ("q_prj", 'target_modules: "q_prj" matches the path of no linear layer, such as .*; did you mean "q_proj"'),
        ("*q_proj", r'target_modules: "\*q_proj" is not a valid regular expression: nothing to repeat'),
        (["mlp.q_proj"], 'no layer is named "mlp.q_proj"'),
    ],
)
def test_target_modules_that_match_no_layer_are_refused(target_modules, problem):
    with pytest.raises(PolicyError, match=problem):
        adapted_layers(target_modules)


def test_adapters_of_another_model_are_refused(tmp_path):
    for name, layers in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        policy = build_tiny(["x"], hidden=16, heads=2, layers=layers, intermediate=16, context_length=64)
        save_policy(with_adapters(policy), tmp_path / name)
    config = json.loads((tmp_path / "two" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(tmp_path / "one" / "base")
    (tmp_path / "two" / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(PolicyError, match="its adapters do not fit their base model"):
        load_policy(tmp_path / "two")


def test_folder_with_missing_weights_is_refused(tmp_path):
    policy = small_policy()
    policy.tokenizer.save_pretrained(tmp_path)
    state = {name: value for name, value in policy.model.state_dict().items() if "layers.1.mlp" not in name}
    policy.model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(PolicyError, match=r"weights are missing: model\.layers\.1\.mlp"):
        load_policy(tmp_path)


def test_frozen_parameters_are_not_trained():
    policy = small_policy()
    trainable = len(policy.trainable_parameters())
    freeze_parameters(policy, ["model.layers.0.*"])
    assert len(policy.trainable_parameters()) == trainable - 9
    with pytest.raises(PolicyError, match=r'"model\.norm\.wait"; did you mean "model\.norm\.weight"'):
        freeze_parameters(policy, ["model.norm.wait"])
    with pytest.raises(PolicyError, match="leaves nothing to train"):
        freeze_parameters(policy, ["*"])


def save_damaged(folder, name, change):
    """Save a model folder and change one of its files."""
    save_policy(small_policy(), folder)
    text = (folder / name).read_bytes()
    (folder / name).write_bytes(change(text))


def with_config(**changes):
    return lambda text: json.dumps({**json.loads(text), **changes}).encode()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "config.json",
            with_config(hidden_size=32),
            r"config\.json does not fit the weights: .* is \[.*16.*\] in the file",
        ),
        ("config.json", with_config(vocab_size=999), r"does not fit the weights: .*, 16\] in the file and \[999, 16\]"),
        ("config.json", lambda text: b"{", "could not be loaded"),
        ("config.json", with_config(model_type="no_such_kind"), "could not be loaded: .*no_such_kind"),
        ("model.safetensors", lambda text: text[:100], "could not be loaded: .*[Hh]eader"),
        ("model.safetensors", lambda text: b"", "could not be loaded"),
        ("tokenizer.json", lambda text: b"{}", "could not be loaded: .{10}"),
    ],
)
def test_damaged_or_mismatched_folder_is_one_line(tmp_path, name, change, message):
    save_damaged(tmp_path, name, change)
    with pytest.raises(PolicyError, match=message) as raised:
        load_policy(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (T5Config(vocab_size=384, d_model=16, num_layers=1, num_heads=2), "type t5 are an encoder and a decoder"),
        (ViTConfig(hidden_size=16, num_hidden_layers=1), "type vit are not causal language models"),
    ],
)
def test_models_that_are_not_causal_are_refused_in_one_line(tmp_path, config, message):
    small_policy().tokenizer.save_pretrained(tmp_path)
    config.save_pretrained(tmp_path)
    with pytest.raises(PolicyError, match=message) as raised:
        load_policy(tmp_path)
    assert "\n" not in str(raised.value)


def test_model_without_a_context_limit_uses_that_of_its_tokenizer():
    policy = small_policy()
    model = MambaForCausalLM(MambaConfig(vocab_size=384, hidden_size=16, num_hidden_layers=1))
    assert Policy(model, policy.tokenizer).context_length == policy.tokenizer.model_max_length
    assert Policy(model, None).context_length == 8192


def test_description_of_a_policy(tmp_path):
    (tmp_path / "checkpoints" / "step-000002").mkdir(parents=True)
    (tmp_path / "recipe.yaml").write_text("title: x")
    with pytest.raises(PolicyError, match=r"it contains a run, whose last checkpoint is .*step-000002"):
        load_policy(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("adapters", [False, True])
def test_checkpoint_of_a_resumed_run_has_identical_files(tmp_path, adapters):
    """Save, load and save again: every file is byte for byte the same in every process."""
    script = "\n".join(
        [
            "import sys",
            "from pathlib import Path",
            "from whetstone.policies import add_adapters, build_tiny, load_policy, save_policy",
            "folder, at = Path(sys.argv[1]), Path(sys.argv[2])",
            "texts = ['user: hi', 'assistant: ok'] * 4",
            "if not len(sys.argv) > 3:",
            "    policy = build_tiny(texts, markers=('<call>',), hidden=16, heads=2, layers=1)",
            f"    if {adapters}:",
            "        add_adapters(policy.model, rank=2, alpha=4, target_modules='all-linear', dora=False, seed=0)",
            "else:",
            "    policy = load_policy(sys.argv[3], as_stored=True)",
            "folder.mkdir()",
            "save_policy(policy, folder, at=at)",
        ]
    )
    for seed, words in enumerate((["a", "x"], ["b", "x", "a"], ["c", "x", "b"])):
        paths = [str(tmp_path / word) for word in words]
        environment = os.environ | {"PYTHONHASHSEED": str(seed)}
        subprocess.run([sys.executable, "-c", script, *paths], check=True, env=environment, capture_output=True)
    first = {p.relative_to(tmp_path / "a"): p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()}
    for name in "bc":
        files = {p.relative_to(tmp_path / name): p.read_bytes() for p in (tmp_path / name).rglob("*") if p.is_file()}
        assert {str(path) for path in first if files.get(path) != first[path]} == set()
        assert files.keys() == first.keys()
    assert b"is_local" not in first[Path("tokenizer_config.json")]
