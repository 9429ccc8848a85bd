"""Precision of computation and of stored weights is the same for sampler and learner."""

import asyncio

import pytest
import torch

from support.segments import segment
from support.small import SMALL
from whetstone.algorithms import supervised
from whetstone.assembly import assemble
from whetstone.errors import PolicyError
from whetstone.inference import GenerateRequest, Sampling
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.policies import (
    add_adapters,
    build_tiny,
    cast_policy,
    clone_trainable,
    fast_dtype,
    load_policy,
    precision,
    save_policy,
    suitable_dtype,
)
from whetstone.recipe import OptimizerSettings, load_recipe
from whetstone.trajectory import TokenSequence

CPU = torch.device("cpu")


def small_policy():
    return build_tiny(["Compute 12"], hidden=16, heads=2, layers=2, intermediate=16, context_length=64, seed=3)


def test_the_measured_ratio_leaves_the_number_of_threads_as_it_was():
    before = torch.get_num_threads()
    precision.bfloat16_time_ratio.cache_clear()
    assert precision.bfloat16_time_ratio() > 0
    assert torch.get_num_threads() == before


def with_adapters(policy):
    add_adapters(policy.model, rank=2, alpha=8, target_modules="all-linear", dora=False, seed=1)
    return policy


def stored_in(dtype, folder):
    """Save a model whose weights have this dtype."""
    folder.mkdir()
    policy = small_policy()
    policy.model.to(dtype)
    save_policy(policy, folder)
    return folder


def dtypes(model, *, lora):
    return {p.dtype for name, p in model.named_parameters() if ("lora_" in name) == lora}


@pytest.mark.parametrize(("ratio", "fast"), [(0.5, torch.bfloat16), (1.1, torch.float32), (17.0, torch.float32)])
def test_small_models_use_float32_and_large_ones_the_faster_precision(ratio, fast, monkeypatch):
    monkeypatch.setattr(precision, "bfloat16_time_ratio", lambda: ratio)
    assert fast_dtype(CPU) == fast
    assert suitable_dtype(1_000_000, CPU) == torch.float32
    assert suitable_dtype(135_000_000, CPU) == fast
    policy = small_policy()
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    assert cast_policy(policy, "auto").dtype == torch.float32
    assert all(torch.equal(p, before[name]) for name, p in policy.model.named_parameters())


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
def test_trained_weights_are_float32(tmp_path, stored):
    folder = stored_in(stored, tmp_path / "model")
    assert dtypes(load_policy(folder).model, lora=False) == {torch.float32}
    as_stored = load_policy(folder, as_stored=True)
    assert dtypes(as_stored.model, lora=False) == {stored}
    policy = cast_policy(as_stored, "bfloat16")
    assert policy.dtype == torch.bfloat16
    assert dtypes(policy.model, lora=False) == {torch.float32}
    sampled = clone_trainable(policy.model, dtype=policy.dtype)
    assert dtypes(sampled, lora=False) == {torch.bfloat16}
    assert sampled.get_input_embeddings().weight is sampled.get_output_embeddings().weight


def test_base_weights_of_adapters_have_the_precision_of_computation_and_one_copy(tmp_path):
    policy = cast_policy(
        with_adapters(load_policy(stored_in(torch.bfloat16, tmp_path / "m"), as_stored=True)), "bfloat16"
    )
    assert dtypes(policy.model, lora=False) == {torch.bfloat16}
    assert dtypes(policy.model, lora=True) == {torch.float32}
    sampled = dict(clone_trainable(policy.model, dtype=policy.dtype).named_parameters())
    for name, parameter in policy.model.named_parameters():
        assert (sampled[name] is parameter) == ("lora_" not in name)
        assert sampled[name].dtype == torch.bfloat16


def test_adapters_on_bfloat16_weights_are_reloaded_exactly(tmp_path):
    folder = stored_in(torch.bfloat16, tmp_path / "model")
    policy = cast_policy(with_adapters(load_policy(folder, as_stored=True)), "bfloat16")
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter += 1e-3 * torch.randn(parameter.shape, generator=draw)
    (tmp_path / "tuned").mkdir()
    save_policy(policy, tmp_path / "tuned")
    reloaded = cast_policy(load_policy(tmp_path / "tuned", as_stored=True), "bfloat16")
    before, after = dict(policy.model.named_parameters()), dict(reloaded.model.named_parameters())
    assert all(torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in before)


@pytest.mark.slow
@pytest.mark.parametrize("with_adapters", [False, True])
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_sampler_and_learner_agree_in_lower_precision(tmp_path, precision, with_adapters):
    folder = stored_in(torch.bfloat16, tmp_path / "model")
    lora = ["policy.lora={rank: 4}"] if with_adapters else []
    overrides = ["policy.tiny=null", f"policy.path={folder}", f"policy.dtype={precision}", "supervised=null", *lora]
    messages = []
    assembly = assemble(load_recipe("demo", [*SMALL, "ablations=null", *overrides]), say=messages.append).check()
    assert any(f"computed on cpu in {precision}" in line for line in messages)
    prompt = assembly.policy.tokenizer.encode("Compute 12")
    trainer = ModelTrainer(assembly.policy, OptimizerSettings(learning_rate=1e-2))

    async def sampled():
        engine = assembly.build_engine()
        try:
            await engine.load_weights(dict(assembly.policy.model.named_parameters()), 1)
            return await engine.generate(
                GenerateRequest(TokenSequence(prompt), Sampling(max_new_tokens=16, seed=1), "one")
            )
        finally:
            await engine.close()

    before = asyncio.run(sampled())
    ids = [*prompt, *before.tokens]
    sequence = segment(ids, [0] * len(prompt) + [1] * len(before.tokens))
    (logprobs,) = trainer.logprobs([sequence])
    assert torch.allclose(logprobs, torch.tensor(before.logprobs), atol=0.05)
    report = trainer.step([sequence], lambda outputs, _: supervised(outputs.logprobs))
    assert report["update/skipped_fraction"] == 0
    after = asyncio.run(sampled())
    assert sum(after.logprobs[:1]) != sum(before.logprobs[:1])
    (logprobs,) = trainer.logprobs([segment([*prompt, *after.tokens], [0] * len(prompt) + [1] * len(after.tokens))])
    assert torch.allclose(logprobs, torch.tensor(after.logprobs), atol=0.05)


@pytest.mark.parametrize("packed", [torch.int8, torch.uint8])
def test_quantized_weights_are_refused_and_not_changed(packed):
    policy = build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64)
    layer = policy.model.get_submodule("model.layers.0.mlp.up_proj")
    layer.weight = torch.nn.Parameter(torch.ones_like(layer.weight).to(packed), requires_grad=False)
    with pytest.raises(PolicyError, match=r"its weights are quantized .*up_proj.weight is u?int8.*policy.lora"):
        cast_policy(policy, "auto")
    assert layer.weight.dtype == packed
