"""Policies in folders: whole ones, adapters with what they stand on, and what is refused."""

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
    freeze,
    load_policy,
    save_policy,
    without_adapters,
)

IDS = torch.arange(12).unsqueeze(0)


def small_policy():
    return build_tiny(["Compute 12"], hidden=16, heads=2, layers=2, intermediate=16, context_length=64, seed=3)


def adapted(policy, *, dora=False):
    """With adapters that have learned something."""
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
def test_adapters_saved_loaded_and_saved_again_are_the_same_policy(tmp_path, dora):
    policy = adapted(small_policy(), dora=dora)
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
        save_policy(policy, tmp_path / name)
        loaded = load_policy(tmp_path / name)
        assert torch.equal(logits(loaded.model), logits(policy.model))
        assert [p.shape for p in loaded.trained()] == [p.shape for p in policy.trained()]
        policy = loaded


def test_peft_opens_our_adapters(tmp_path):
    policy = adapted(small_policy())
    save_policy(policy, tmp_path)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", local_files_only=True)
    assert torch.allclose(logits(PeftModel.from_pretrained(base, tmp_path)), logits(policy.model), atol=1e-6)


def test_adapters_on_a_folder_name_it_and_leave_it_alone(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "tuned").mkdir()
    save_policy(small_policy(), tmp_path / "model")
    policy = adapted(load_policy(tmp_path / "model"))
    save_policy(policy, tmp_path / "tuned")
    assert not (tmp_path / "tuned" / "base").exists()
    assert torch.equal(logits(load_policy(tmp_path / "tuned").model), logits(policy.model))
    assert json.loads((tmp_path / "tuned" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        tmp_path / "model"
    )
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(PolicyError, match=r"its adapters stand on .*model, which is not there"):
        load_policy(tmp_path / "tuned")


def test_adapters_load_with_other_tools_from_wherever_one_works(tmp_path, monkeypatch):
    """As a run saves them: into a folder that gets its name when it is whole."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    save_policy(small_policy(), tmp_path / "model")
    for name, policy in (("own", adapted(small_policy())), ("tuned", adapted(load_policy("model")))):
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
    # what was moved with all it stands on is found by ours
    (tmp_path / "own").rename(tmp_path / "moved")
    assert load_policy(tmp_path / "moved").parameters > 0


@pytest.mark.parametrize("dora", [False, True])
def test_merged_weights_say_what_the_adapters_said(tmp_path, dora):
    policy = adapted(small_policy(), dora=dora)
    merged = without_adapters(policy.model, merge=True)
    assert torch.allclose(logits(merged), logits(policy.model), atol=1e-5)
    (tmp_path / "merged").mkdir()
    save_policy(Policy(merged, policy.tokenizer), tmp_path / "merged")
    assert torch.allclose(logits(load_policy(tmp_path / "merged").model), logits(policy.model), atol=1e-5)


def test_without_its_adapters_a_model_is_what_it_was():
    plain = small_policy()
    policy = adapted(small_policy())
    assert torch.equal(logits(without_adapters(policy.model, merge=False)), logits(plain.model))
    with adapters_off(policy.model):
        assert torch.equal(logits(policy.model), logits(plain.model))
    assert not torch.allclose(logits(policy.model), logits(plain.model), atol=1e-3)


def test_adapters_on_layers_that_do_not_exist_are_refused_with_the_nearest():
    with pytest.raises(PolicyError, match='no layer is named "q_prj"; did you mean "q_proj"'):
        add_adapters(small_policy().model, rank=4, alpha=8, target_modules=["q_prj"], dora=False, seed=0)


def test_adapters_of_another_model_are_refused(tmp_path):
    for name, layers in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        made = build_tiny(["x"], hidden=16, heads=2, layers=layers, intermediate=16, context_length=64)
        save_policy(adapted(made), tmp_path / name)
    config = json.loads((tmp_path / "two" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(tmp_path / "one" / "base")
    (tmp_path / "two" / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(PolicyError, match="its adapters do not fit the model they stand on"):
        load_policy(tmp_path / "two")


def test_a_folder_with_weights_missing_is_refused_and_not_filled_with_random_numbers(tmp_path):
    policy = small_policy()
    policy.tokenizer.save_pretrained(tmp_path)
    state = {name: value for name, value in policy.model.state_dict().items() if "layers.1.mlp" not in name}
    policy.model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(PolicyError, match=r"weights are missing: model\.layers\.1\.mlp"):
        load_policy(tmp_path)


def test_frozen_parts_are_left_out_of_training():
    policy = small_policy()
    whole = len(policy.trained())
    freeze(policy, ["model.layers.0.*"])
    assert len(policy.trained()) == whole - 9
    with pytest.raises(PolicyError, match=r'"model\.norm\.wait"; did you mean "model\.norm\.weight"'):
        freeze(policy, ["model.norm.wait"])
    with pytest.raises(PolicyError, match="leaves nothing to train"):
        freeze(policy, ["*"])


def broken(folder, name, change):
    """A model folder one file of which is changed."""
    save_policy(small_policy(), folder)
    text = (folder / name).read_bytes()
    (folder / name).write_bytes(change(text))


def with_config(**changes):
    return lambda text: json.dumps({**json.loads(text), **changes}).encode()


@pytest.mark.parametrize(
    ("name", "change", "said"),
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
def test_a_folder_that_is_damaged_or_does_not_fit_is_one_line(tmp_path, name, change, said):
    broken(tmp_path, name, change)
    with pytest.raises(PolicyError, match=said) as raised:
        load_policy(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (T5Config(vocab_size=384, d_model=16, num_layers=1, num_heads=2), "type t5 are an encoder and a decoder"),
        (ViTConfig(hidden_size=16, num_hidden_layers=1), "type vit are not causal language models"),
    ],
)
def test_models_that_are_not_causal_are_refused_in_a_line(tmp_path, config, said):
    small_policy().tokenizer.save_pretrained(tmp_path)
    config.save_pretrained(tmp_path)
    with pytest.raises(PolicyError, match=said) as raised:
        load_policy(tmp_path)
    assert "\n" not in str(raised.value)


def test_a_model_without_a_bound_has_what_its_tokenizer_says_in_view():
    policy = small_policy()
    model = MambaForCausalLM(MambaConfig(vocab_size=384, hidden_size=16, num_hidden_layers=1))
    assert Policy(model, policy.tokenizer).context_length == policy.tokenizer.model_max_length
    assert Policy(model, None).context_length == 8192


def test_a_run_is_told_what_it_is(tmp_path):
    (tmp_path / "checkpoints" / "step-000002").mkdir(parents=True)
    (tmp_path / "recipe.yaml").write_text("title: x")
    with pytest.raises(PolicyError, match=r"it holds a run, whose last checkpoint is .*step-000002"):
        load_policy(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("adapters", [False, True])
def test_a_checkpoint_of_a_resumed_run_has_the_files_of_one_that_was_not_interrupted(tmp_path, adapters):
    """Saved, loaded and saved again, every file is the same to the last byte, and in every process."""
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
