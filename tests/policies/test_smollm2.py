"""A pretrained model is downloaded, sampled, trained, used in a chat and exported."""

import io
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from support.cli import whetstone
from whetstone.policies import stored_models, suitable_dtype

NAME = "smollm2-135m"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def fetched():
    """Skip if the model is not in the cache."""
    if NAME not in stored_models():
        pytest.skip(f"the model is not there: whetstone models add {NAME}")


def test_it_is_trained_with_adapters_used_in_a_chat_and_exported(tmp_path, monkeypatch):
    changes = ["policy.tiny=null", f"policy.path={NAME}", "policy.lora={rank: 4}", "supervised=null", "ablations=null",
               "chat.format=auto", "reinforcement.steps=1", "reinforcement.tasks_per_step=2",
               "reinforcement.optimizer=adamw", "rollout.group_size=2", "rollout.max_new_tokens=12",
               "environment.max_turns=1",
               "evaluation.episodes=2"]  # fmt: skip
    done = whetstone("train", "demo", *changes, "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    output = done.stdout + done.stderr
    assert "tools are called as hermes (chat.format: auto)" in output
    quick = (
        suitable_dtype(135_000_000, torch.device("cpu")) is torch.bfloat16
    )  # if the processor has instructions for it
    assert (" in bfloat16, adapters in float32" in output) is quick
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Who are you?\n")))
    spoken = whetstone("chat", tmp_path / "run", "--temperature", "0")
    assert spoken.returncode == 0, spoken.stderr
    assert "  assistant " in spoken.stdout
    out = tmp_path / "out"
    assert whetstone("export", tmp_path / "run", "--merged", "--output-dir", out).returncode == 0
    opened = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    assert {p.dtype for p in opened.parameters()} == {torch.bfloat16}
    assert not (out / "adapter_config.json").exists()
