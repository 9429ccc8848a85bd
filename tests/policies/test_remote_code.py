"""Code in a model folder is not executed, and no question is asked, unless `trust_remote_code` is set."""

import json

import pytest

from support.cli import whetstone
from whetstone.errors import PolicyError, RecipeError
from whetstone.policies import build_tiny, load_policy, save_policy
from whetstone.rewards.judges.local_judge import LocalJudge
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
def code_model(tmp_path):
    """Create a model folder with code; the code writes a file `ran` next to itself."""
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
def test_code_of_a_model_is_not_executed(code_model, monkeypatch, load):
    monkeypatch.setattr("builtins.input", lambda _: "y")  # no question is asked
    with pytest.raises((PolicyError, RecipeError), match=r"comes (with it|as code)|requires remote code") as raised:
        load(code_model)
    assert "\n" not in str(raised.value)
    assert not (code_model.parent / "ran").exists()


def test_code_of_a_tokenizer_is_not_executed(code_model):
    folder = code_model
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["shipped.Mine", "shipped.Mine"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(PolicyError, match="trust_remote_code: true"):
        load_policy(folder)
    assert not (folder.parent / "ran").exists()


@pytest.mark.parametrize("named", ["someone/kernel", "flash_attention_2", "kernels-community/flash-attn2@main:flash"])
def test_attention_kernels_of_the_hub_are_not_used(tmp_path, named):
    policy = build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64)
    save_policy(policy, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "attn_implementation": named}))
    with pytest.raises(PolicyError, match="names attention"):
        load_policy(tmp_path)


def test_code_is_executed_if_the_recipe_allows_it(code_model, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    assert load_policy(code_model, trust_remote_code=True).parameters > 0
    assert (tmp_path / "ran").exists()


def test_command_refuses_code_in_one_line(code_model, tmp_path):
    (tmp_path / "mine.yaml").write_text(f"extends: demo\npolicy: {{path: {code_model}, tiny: null}}\n")
    result = whetstone("rollout", str(tmp_path / "mine.yaml"), "-n", "1")
    assert result.returncode == 2
    assert "only with `trust_remote_code: true`" in result.stderr
    assert not (tmp_path / "ran").exists()
