"""`MergedLoraEngine` samples from a copy of the model with merged LoRA weights."""

import asyncio
from dataclasses import replace

import pytest
import torch

from whetstone.inference import ENGINES, LocalEngine, uses_merged_weights
from whetstone.inference.merged_lora_engine import MergedLoraEngine
from whetstone.policies import add_adapters, build_tiny, merged_weights
from whetstone.trajectory import TokenSequence

PROMPT = [40, 41, 42, 43, 50, 60, 44]


@pytest.fixture
def policy():
    tiny = build_tiny(["What is 2 + 3? It is 5."] * 3, hidden=32, heads=2, layers=2, intermediate=48, context_length=64)
    add_adapters(tiny.model, rank=4, alpha=8.0, target_modules="all-linear", dora=False, seed=1)
    return tiny


def adapter_weights(model, seed=0):
    torch.manual_seed(seed)
    return {name: torch.randn_like(p) * 0.2 for name, p in model.named_parameters() if "lora_" in name}


def own(model):
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([PROMPT])).logits[0].float(), -1)
    return [logprobs[i, token].item() for i, token in enumerate(PROMPT[1:])]


def scored(engine, *loads):
    async def main():
        try:
            for version, weights in enumerate(loads, 1):
                await engine.load_weights(weights, version)
            return (await engine.score(TokenSequence(PROMPT))).logprobs, engine.version
        finally:
            await engine.close()

    return asyncio.run(main())


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_merged_weights_predict_like_the_model_with_adapters(policy, dtype, bound):
    before = own(policy.model)
    weights = adapter_weights(policy.model)
    logprobs, version = scored(MergedLoraEngine(replace(policy, dtype=dtype), rows=2), weights)
    assert version == 1
    expected = own(policy.model)  # loaded into the adapters of the policy
    assert max(abs(a - b) for a, b in zip(expected, before, strict=True)) > 0.12
    assert logprobs == pytest.approx(expected, abs=bound)


def test_each_version_is_merged_into_the_original_weights(policy):
    first, second = adapter_weights(policy.model), adapter_weights(policy.model, seed=1)
    repeated, _ = scored(MergedLoraEngine(policy, rows=2), first, second, first)
    once, _ = scored(MergedLoraEngine(policy, rows=2), first)
    assert repeated == once


def test_restarted_engine_has_the_last_weights(policy):
    once, _ = scored(MergedLoraEngine(policy, rows=2), adapter_weights(policy.model))
    restarted, version = scored(MergedLoraEngine(policy, rows=2, version=7))
    assert (restarted, version) == (once, 7)


def test_merge_is_computed_in_float32_and_rounded_once(policy):
    for name, parameter in policy.model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.full_like(parameter, 1e-2)
    merged = merged_weights(policy.model, torch.bfloat16)
    name = "model.layers.0.self_attn.q_proj"
    base = policy.model.get_submodule(name).get_base_layer().weight
    assert torch.equal(merged[f"{name}.weight"], (base + 8.0 / 4 * 4 * 1e-4).to(torch.bfloat16))


def test_merged_engine_is_chosen_if_supported_and_faster(policy, monkeypatch):
    short = replace(policy, dtype=torch.bfloat16)
    assert not uses_merged_weights(policy)
    with monkeypatch.context() as patched:
        patched.setattr("whetstone.inference.engine_factory.SMALL", 1000)
        assert uses_merged_weights(policy)
    assert uses_merged_weights(short)
    assert isinstance(ENGINES["local"](policy=short, max_sequences=2), MergedLoraEngine)
    plain = build_tiny(["a"], hidden=32, heads=2, layers=1, intermediate=48, context_length=64)
    assert not uses_merged_weights(replace(plain, dtype=torch.bfloat16))
    add_adapters(plain.model, rank=2, alpha=4.0, target_modules="all-linear", dora=True, seed=0)
    assert not uses_merged_weights(replace(plain, dtype=torch.bfloat16))
    assert type(ENGINES["local"](policy=plain, max_sequences=2)) is LocalEngine
