"""`whetstone export`: folders that Transformers opens and that say what the policy said."""

import os

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests_cli import whetstone
from whetstone.policies import add_adapters, build_tiny, load_policy, save_policy

IDS = torch.arange(12).unsqueeze(0)


@pytest.fixture
def tuned(tmp_path):
    """Adapters that have learned something, beside what they stand on."""
    policy = build_tiny(["Compute 12"], hidden=16, heads=2, layers=2, intermediate=16, context_length=64, seed=3)
    add_adapters(policy.model, rank=4, alpha=8, target_modules="all-linear", dora=False, seed=1)
    numbers = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in policy.trained():
            parameter += 0.1 * torch.randn(parameter.shape, generator=numbers)
    (tmp_path / "tuned").mkdir()
    save_policy(policy, tmp_path / "tuned")
    return tmp_path / "tuned"


@torch.no_grad()
def logits(model):
    return model(IDS).logits


@pytest.mark.parametrize(("dtype", "apart"), [("float32", 1e-5), ("bfloat16", 5e-2), ("float16", 1e-2)])
def test_merged_weights_opened_by_transformers_say_what_the_policy_says(tmp_path, tuned, dtype, apart):
    done = whetstone("export", tuned, "--merged", "--dtype", dtype, "--output-dir", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert {p.dtype for p in opened.parameters()} == {getattr(torch, dtype)}
    assert torch.allclose(logits(opened).float(), logits(load_policy(tuned).model), atol=apart)
    assert not (tmp_path / "out" / "adapter_config.json").exists()
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template


def test_adapters_that_are_not_merged_stay_adapters(tmp_path, tuned):
    assert whetstone("export", tuned, "--output-dir", tmp_path / "out").returncode == 0
    assert torch.equal(logits(load_policy(tmp_path / "out").model), logits(load_policy(tuned).model))
    assert (tmp_path / "out" / "adapter_config.json").is_file()


@pytest.mark.slow
def test_a_gguf_file_is_written_where_the_converter_is_at_hand(tmp_path, tuned, monkeypatch):
    words = ["export", tuned, "--merged", "--gguf", "--output-dir", tmp_path / "out"]
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    refused = whetstone(*words)
    assert refused.returncode == 2
    assert "convert_hf_to_gguf.py, which is not on the PATH" in refused.stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "bin").mkdir()
    for script, code in (("echo no such architecture >&2; exit 1", 2), ('echo made > "$3"', 0)):
        (tmp_path / "bin" / "convert_hf_to_gguf.py").write_text(f"#!/bin/sh\n{script}\n")
        os.chmod(tmp_path / "bin" / "convert_hf_to_gguf.py", 0o755)
        done = whetstone(*words)
        assert done.returncode == code
        if code:
            assert "convert_hf_to_gguf.py failed: no such architecture" in done.stderr
            assert not (tmp_path / "out").exists()
    assert (tmp_path / "out" / "model-bf16.gguf").read_text() == "made\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tuned", "--dtype", "bfloat16", "--output-dir", "out"], "--dtype: adapters alone are written as they were"),
        (["tuned", "--merged", "--output-dir", "tuned"], "tuned: exists already"),
        (["nowhere", "--output-dir", "out"], "nowhere: no such model folder"),
    ],
)
def test_what_cannot_be_exported_is_one_line(tuned, words, said):
    refused = whetstone("export", *words, cwd=tuned.parent)
    assert refused.returncode == 2
    assert said in refused.stderr.strip().splitlines()[-1]
    assert not (tuned.parent / "out").exists()
