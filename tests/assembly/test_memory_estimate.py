"""A model that does not fit into memory is refused before it is loaded, with settings that fit."""

import gc
import json
import struct

import pytest
import torch

from support.fake_device import DEVICE, NAME, allocated, most_allocated
from support.segments import segment
from support.small import SMALL
from whetstone.algorithms import supervised
from whetstone.assembly import assemble, memory_estimate
from whetstone.assembly.memory_estimate import (
    ModelSize,
    check_fits,
    count_concurrent_episodes,
    estimate_memory_shares,
    estimate_policy_size,
)
from whetstone.errors import RecipeError
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.policies import (
    CPU,
    build_tiny,
    devices,
    find_device,
    free_memory,
    move_policy,
    save_policy,
    stored_weights,
)
from whetstone.recipe import OptimizerSettings, load_recipe
from whetstone.training import train

THERE = find_device(DEVICE)
MORE_STALE = "reinforcement.max_staleness=1"
DORA = "policy.lora={rank: 16, dora: true}"


def write_sparse_weights(folder, *, parameters, name="model.safetensors"):
    """Write a sparse file whose header declares this number of bfloat16 values."""
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
    ("fraction", "changes", "message"),
    [
        # fraction of free memory: 2 or 4 bytes per parameter fit, 16 bytes and more do not
        (0.15, [], r"policy\.lora: \{rank: 16\} takes .* GiB, reinforcement\.activation_checkpointing: true"),
        (0.15, ["reinforcement.activation_checkpointing=true"], r"policy\.lora: \{rank: 16\} takes [\d.]+ GiB$"),
        (
            0.3,
            ["policy.lora={rank: 16, dora: true}", "policy.dtype=float32"],
            r"policy\.dtype: bfloat16 takes .* GiB, reinforcement\.activation",
        ),
        (3.0, ["policy.lora={rank: 16}"], r"a smaller model, or a machine with more memory"),
    ],
)
def test_insufficient_memory_is_refused_before_loading(tmp_path, fraction, changes, message):
    folder = write_sparse_weights(tmp_path / "large", parameters=int(free_memory(CPU) * fraction))
    recipe = load_recipe("demo", ["policy.tiny=null", f"policy.path={folder}", "ablations=null", *changes])
    too_large = rf"policy\.path: its .* billion parameters need .* are free; {message}"
    with pytest.raises(RecipeError, match=too_large) as raised:
        check_fits(recipe, trains=True)
    assert "\n" not in str(raised.value)


def test_run_checks_memory_before_loading_and_an_evaluation_needs_less(tmp_path):
    folder = write_sparse_weights(tmp_path / "large", parameters=int(free_memory(CPU) * 0.1))
    recipe = load_recipe("demo", ["policy.tiny=null", f"policy.path={folder}", "ablations=null"])
    check_fits(recipe, trains=False)
    with pytest.raises(RecipeError, match=r"policy\.lora: \{rank: 16\} takes"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_shards_tied_embeddings_and_custom_templates_are_loaded(tmp_path):
    policy = build_tiny(["Compute 12"], hidden=16, heads=2, layers=2, intermediate=16)
    policy.model.to(dtype=torch.bfloat16)
    save_policy(policy, tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    policy.model.save_pretrained(tmp_path, max_shard_size="8KB")
    keys = ["policy.tiny=null", f"policy.path={tmp_path}", "ablations=null"]
    loaded = assemble(load_recipe("demo", keys)).policy
    assert loaded.parameters == policy.parameters
    assert loaded.model.get_input_embeddings().weight is loaded.model.get_output_embeddings().weight
    assert loaded.tokenizer.chat_template == policy.tokenizer.chat_template


def test_kv_cache_is_bounded_by_the_episodes_that_are_sampled_at_once():
    def count(*changes):
        return count_concurrent_episodes(load_recipe("demo", ["reinforcement.tasks_per_step=2", *changes]))

    assert count("evaluation.episodes=5", "rollout.group_size=4") == 8
    assert count("evaluation.episodes=5", "rollout.group_size=4", "reinforcement.admit_ahead=1", MORE_STALE) == 16
    assert count("evaluation.episodes=50", "rollout.group_size=4") == 50
    assert count("evaluation.episodes=5", "rollout.max_in_flight=3") == 3
    assert count("evaluation.episodes=5", "rollout.strategy=random_branching") == 256


def planned(*changes, trains=True):
    recipe = load_recipe("demo", [*SMALL, f"policy.device={DEVICE}", "ablations=null", *changes])
    return {(share.what, share.device.type): share.bytes for share in estimate_memory_shares(recipe, trains=trains)}


def test_memory_of_a_run_is_counted_per_kind_and_device():
    count = estimate_policy_size(load_recipe("demo", SMALL).recipe).parameters
    plain = planned("reinforcement.reference_kl=0.1")
    assert plain["weights", DEVICE] == plain["gradients", DEVICE] == plain["the reference", DEVICE] == 4 * count
    assert plain["optimizer states", DEVICE] == 8 * count
    assert planned("loss_terms=[{name: reference_kl, weight: 0.1}]") == plain
    offloaded = planned("reinforcement.reference_kl=0.1", "reinforcement.reference_offload=true")
    assert offloaded["the reference", "cpu"] == offloaded["the reference in its forward pass", DEVICE] == 4 * count
    assert (
        planned("reinforcement.optimizer_offload=true")["optimizer states with a copy of the weights", "cpu"]
        == 12 * count
    )
    half = planned("policy.dtype=bfloat16", "policy.lora={rank: 4}")
    assert half["weights", DEVICE] == 2 * count + 4 * (half["gradients", DEVICE] // 4)
    assert half["the sampler's weights", DEVICE] == 2 * count
    assert ("gradients", DEVICE) not in planned(trains=False)


@pytest.mark.slow
def test_parameter_counts_of_a_tiny_model_and_its_adapters_are_correct():
    for changes in ((), ("policy.lora={rank: 4}",)):
        recipe = load_recipe("demo", [*SMALL, "ablations=null", *changes])
        policy = assemble(recipe).policy
        size = estimate_policy_size(recipe.recipe)
        trained = sum(parameter.numel() for parameter in policy.trainable_parameters())
        assert trained <= (size.count_lora_parameters(4) if changes else size.parameters) <= 1.05 * trained


@pytest.mark.slow
@pytest.mark.skipif(DEVICE != NAME, reason="bytes are counted on the device in memory of the CPU")
@pytest.mark.parametrize("way", [{}, {"activation_checkpointing": True}, {"logits_memory_mb": 1}])
def test_memory_of_a_forward_pass_is_at_most_the_estimate_and_at_least_a_quarter(way):
    policy = move_policy(build_tiny(["x"], hidden=64, heads=2, layers=6, intermediate=128, context_length=256), THERE)
    settings = OptimizerSettings(prefix_sharing=False, **way)
    segments = [segment([k % 200 for k in range(start, start + 50)], [True] * 50) for start in range(10)]
    trainer = ModelTrainer(policy, settings)
    trainer.step(segments, lambda outputs, _: supervised(outputs.logprobs))
    gc.collect()
    allocated_before = allocated()
    with most_allocated() as most:
        trainer.step(segments, lambda outputs, _: supervised(outputs.logprobs))
    size = ModelSize(policy.parameters, 6, 64, 128, 64, len(policy.tokenizer), 256)
    took, estimate = most[0] - allocated_before - 4 * policy.parameters, size.activation_bytes(10 * 49, settings)
    assert took <= estimate <= 4 * took


def test_too_large_model_is_refused_with_settings_that_fit(tmp_path, monkeypatch):
    folder = write_sparse_weights(tmp_path / "large", parameters=1 << 28)
    keys = ["policy.tiny=null", f"policy.path={folder}", "ablations=null", f"policy.device={DEVICE}"]
    module = torch.get_device_module(DEVICE)
    monkeypatch.setattr(module, "mem_get_info", lambda device=None: (3 << 30, 4 << 30))
    recipe = load_recipe("demo", [*keys, "policy.dtype=float32", "reinforcement.reference_kl=0.1"])
    with pytest.raises(RecipeError, match=rf"5 GiB on {DEVICE}:0 of permanent .* only 3 GiB are free") as raised:
        check_fits(recipe, trains=True)
    message = str(raised.value)
    assert "policy.lora: {rank: 16} takes 2 GiB" in message  # weights, and the policy the warm-up ends with
    assert "reinforcement.optimizer_offload: true takes 3 GiB" in message
    assert "reinforcement.optimizer: adamw_8bit" not in message  # 3.5 GiB
    assert "reinforcement.reference_offload" not in message  # 4 GiB


def test_a_device_without_room_for_one_episode_is_one_line(monkeypatch):
    module = torch.get_device_module(DEVICE)
    assembly = assemble(load_recipe("demo", [*SMALL, "ablations=null", f"policy.device={DEVICE}"]))
    monkeypatch.setattr(module, "mem_get_info", lambda device=None: (1 << 10, 4 << 30))
    with pytest.raises(
        RecipeError, match=rf"engine: the KV cache does not fit on {DEVICE}:0: .* too small for one sequence"
    ):
        assembly.build_engine()


def test_members_that_do_not_fit_together_are_refused_with_settings_that_fit(tmp_path, monkeypatch):
    folder = write_sparse_weights(tmp_path / "large", parameters=1 << 26)
    large = [
        "policy.tiny=null",
        f"policy.path={folder}",
        "policy.dtype=float32",
        "policy.device=cpu",
        "supervised=null",
    ]
    monkeypatch.setattr(
        memory_estimate, "free_memory", lambda device: 3 << 29
    )  # 1.5 GiB: 16 bytes per parameter take 1 GiB
    check_fits(load_recipe("bargaining", large), trains=True)
    two = load_recipe("bargaining", [*large, "policies={buyer: {}, seller: {like: buyer}}"])
    message = (
        r"0.0671 billion parameters of buyer and 0.0671 billion parameters of seller need 2 GiB of permanent memory, "
        r"but only 1.5 GiB are free; policy.lora: \{rank: 16\} takes 0.5 GiB"
    )
    with pytest.raises(RecipeError, match=message):
        check_fits(two, trains=True)
    check_fits(load_recipe(two, ["policies.seller.trained=false"]), trains=True)
    shares = {share.what for share in estimate_memory_shares(two, trains=True)}
    assert {"buyer: weights", "seller: weights", "seller: optimizer states"} <= shares


@pytest.mark.parametrize(
    ("groups", "mount", "files"),
    [
        ("0::/user.slice/run-1.scope\n", "unified", ("memory.max", "memory.current", "inactive_file")),
        (
            "5:cpu:/\n4:cpuset,memory:/user.slice/run-1.scope\n0::/\n",
            "memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_free_memory_is_limited_by_the_smallest_control_group(tmp_path, monkeypatch, groups, mount, files):
    limit, usage, cached = files
    slice_, scope = tmp_path / mount / "user.slice", tmp_path / mount / "user.slice" / "run-1.scope"
    for folder, values in ((slice_, (900, 500, 0)), (scope, (700, 400, 50))):
        folder.mkdir(parents=True)
        for name, value in zip((limit, usage), values, strict=False):
            (folder / name).write_text(f"{value}\n")
        (folder / "memory.stat").write_text(f"anon 1\n{cached} {values[2]}\n")
    (tmp_path / "cgroup").write_text(groups)
    monkeypatch.setattr(devices, "_GROUPS", tmp_path / "cgroup")
    controller = "" if mount == "unified" else "memory"
    monkeypatch.setattr(devices, "_HIERARCHIES", {controller: (tmp_path / mount, *files)})
    assert devices.free_memory(CPU) == 700 - (400 - 50)
    (scope / usage).write_text("100\n")
    assert devices.free_memory(CPU) == 900 - 500
    (slice_ / limit).write_text("max\n")
    assert devices.free_memory(CPU) == 700 - (100 - 50)
    (scope / usage).write_text("800\n")
    assert devices.free_memory(CPU) == 0
