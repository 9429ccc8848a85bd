"""A model too large for memory is said before it is loaded, with what would fit."""

import json
import struct

import pytest
import torch

from whetstone.assembly import assemble
from whetstone.assembly.memory import check_fits, free_bytes
from whetstone.errors import RecipeError
from whetstone.policies import build_tiny, save_policy, stored_weights
from whetstone.recipe import load_recipe
from whetstone.training import train


def hollow(folder, *, parameters, name="model.safetensors"):
    """A file that says it holds so many numbers in bfloat16; the disk holds none of them."""
    folder.mkdir(exist_ok=True)
    width = 1 << 12
    header = {"big.weight": {"dtype": "BF16", "shape": [parameters // width, width], "data_offsets": [0, 0]}}
    header["big.weight"]["data_offsets"][1] = parameters // width * width * 2
    text = json.dumps(header).encode()
    with open(folder / name, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(file.tell() + header["big.weight"]["data_offsets"][1])
    (folder / "config.json").write_text("{}")
    return folder


def test_weights_are_counted_over_all_files(tmp_path):
    policy = build_tiny(["x"], hidden=16, heads=2, layers=2, intermediate=16)
    policy.model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    stored = stored_weights(tmp_path)
    assert stored.parameters == policy.parameters
    assert stored.bytes >= 4 * policy.parameters


@pytest.mark.parametrize(
    ("share", "changes", "said"),
    [
        # of what is free: 16 bytes a parameter and more do not fit where 2 or 4 do
        (0.15, [], r"policy\.lora: \{rank: 16\} takes .* GiB, activation_checkpointing: true"),
        (0.15, ["reinforcement.activation_checkpointing=true"], r"policy\.lora: \{rank: 16\} takes [\d.]+ GiB$"),
        (0.3, ["policy.lora={rank: 16}", "policy.dtype=float32"], r"policy\.dtype: bfloat16 takes .* GiB, activation"),
        (3.0, ["policy.lora={rank: 16}"], r"a smaller model, or a machine with more memory"),
    ],
)
def test_what_does_not_fit_is_said_before_it_is_loaded(tmp_path, share, changes, said):
    folder = hollow(tmp_path / "large", parameters=int(free_bytes() * share))
    recipe = load_recipe("demo", ["policy.tiny=null", f"policy.path={folder}", "ablations=null", *changes])
    too_large = rf"policy\.path: its .* billion parameters take .* are free; {said}"
    with pytest.raises(RecipeError, match=too_large) as raised:
        check_fits(recipe, trains=True)
    assert "\n" not in str(raised.value)


def test_a_run_asks_before_it_loads_and_an_evaluation_asks_for_less(tmp_path):
    folder = hollow(tmp_path / "large", parameters=int(free_bytes() * 0.1))
    recipe = load_recipe("demo", ["policy.tiny=null", f"policy.path={folder}", "ablations=null"])
    check_fits(recipe, trains=False)
    with pytest.raises(RecipeError, match=r"policy\.lora: \{rank: 16\} takes"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_shards_tied_ends_and_a_template_of_its_own_are_loaded_as_they_are(tmp_path):
    policy = build_tiny(["Compute 12"], hidden=16, heads=2, layers=2, intermediate=16)
    policy.model.to(dtype=torch.bfloat16)
    save_policy(policy, tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    policy.model.save_pretrained(tmp_path, max_shard_size="8KB")
    given = ["policy.tiny=null", f"policy.path={tmp_path}", "ablations=null"]
    loaded = assemble(load_recipe("demo", given)).policy
    assert loaded.parameters == policy.parameters
    assert loaded.model.get_input_embeddings().weight is loaded.model.get_output_embeddings().weight
    assert loaded.tokenizer.chat_template == policy.tokenizer.chat_template
