"""A model that comes with code runs none of it, and asks nobody, unless it was said."""

import json

import pytest

from tests_cli import whetstone
from whetstone.errors import PolicyError, RecipeError
from whetstone.policies import build_tiny, load_policy, save_policy
from whetstone.rewards.judges.local import LocalJudge
from whetstone.rewards.learned.model import RewardModel
from whetstone.tools.embedding import Encoder

CODE = """
import pathlib
pathlib.Path({ran!r}).touch()
from transformers import LlamaConfig, LlamaForCausalLM


class Config(LlamaConfig):
    model_type = "shipped"


class Model(LlamaForCausalLM):
    config_class = Config
"""


@pytest.fixture
def shipped(tmp_path):
    """A model folder that is code; where the code ran, there is a file `ran` beside it."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_policy(build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64), folder)
    config = json.loads((folder / "config.json").read_text())
    auto_map = {"AutoConfig": "shipped.Config", "AutoModelForCausalLM": "shipped.Model", "AutoModel": "shipped.Model"}
    written = {**config, "model_type": "shipped", "auto_map": auto_map, "architectures": ["Model"]}
    (folder / "config.json").write_text(json.dumps(written))
    (folder / "shipped.py").write_text(CODE.format(ran=str(tmp_path / "ran")))
    return folder


@pytest.mark.parametrize(
    "load",
    [load_policy, lambda folder: LocalJudge(path=str(folder)), RewardModel, lambda folder: Encoder(str(folder))],
    ids=["policy", "judge", "reward model", "encoder"],
)
def test_code_that_comes_with_a_model_is_not_run(shipped, monkeypatch, load):
    monkeypatch.setattr("builtins.input", lambda _: "y")  # nobody is asked
    with pytest.raises((PolicyError, RecipeError), match=r"comes (with it|as code)") as raised:
        load(shipped)
    assert "\n" not in str(raised.value)
    assert not (shipped.parent / "ran").exists()


def test_a_tokenizer_that_is_code_is_not_run(shipped):
    folder = shipped
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["shipped.Mine", "shipped.Mine"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(PolicyError, match="trust_remote_code: true"):
        load_policy(folder)
    assert not (folder.parent / "ran").exists()


@pytest.mark.parametrize("named", ["someone/kernel", "flash_attention_2", "kernels-community/flash-attn2@main:flash"])
def test_attention_that_would_be_fetched_is_not_used(tmp_path, named):
    policy = build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64)
    save_policy(policy, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "attn_implementation": named}))
    with pytest.raises(PolicyError, match="names attention"):
        load_policy(tmp_path)


def test_code_is_run_where_it_is_said(shipped, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    assert load_policy(shipped, trust_remote_code=True).parameters > 0
    assert (tmp_path / "ran").exists()


def test_a_command_refuses_it_in_a_line(shipped, tmp_path):
    (tmp_path / "mine.yaml").write_text(f"extends: demo\npolicy: {{path: {shipped}, tiny: null}}\n")
    result = whetstone("rollout", str(tmp_path / "mine.yaml"), "-n", "1")
    assert result.returncode == 2
    assert "`trust_remote_code: true` says so" in result.stderr
    assert not (tmp_path / "ran").exists()
