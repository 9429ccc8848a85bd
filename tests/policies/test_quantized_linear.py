"""LoRA adapters on 4-bit base weights: engine, learner, checkpoint and export use the same dequantized weights."""

import asyncio
import copy
from dataclasses import replace

import pytest
import torch

from support.served_policy import build_assembly
from whetstone.errors import PolicyError, RecipeError
from whetstone.inference import ENGINES, GenerateRequest, LocalEngine, Sampling
from whetstone.policies import add_adapters, build_tiny, cast_policy, load_policy, merge_adapters, save_policy
from whetstone.policies.adapters import adapter_shape, without_adapters
from whetstone.policies.quantized_linear import (
    QuantizedLinear,
    count_quantized,
    dequantize_linears,
    is_quantized,
    quantize_linears,
)
from whetstone.recipe import load_recipe
from whetstone.trajectory import TokenSequence

bitsandbytes = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install bitsandbytes")
PROMPT = [40, 41, 42, 43, 50, 60, 44]
NF4 = "policy.lora={rank: 4, quantization: nf4}"


def build(*, adapters=True, spread=0.2):
    policy = build_tiny(["2 + 3 = 5."] * 3, hidden=32, heads=2, layers=2, intermediate=48, context_length=64)
    quantize_linears(policy.model)
    if adapters:
        add_adapters(policy.model, rank=4, alpha=8.0, target_modules="all-linear", dora=False, seed=1)
        torch.manual_seed(0)
        for parameter in policy.trainable_parameters():
            parameter.data = torch.randn_like(parameter) * spread
    return policy


def dequantized(policy):
    """Return the same policy with plain linear layers of the dequantized weights."""
    model = copy.deepcopy(policy.model)
    for path, module in [(p, m) for p, m in model.named_modules() if isinstance(m, QuantizedLinear)]:
        plain = torch.nn.Linear(module.in_features, module.out_features, bias=False)
        plain.weight = torch.nn.Parameter(module.weight, requires_grad=False)
        above, _, last = path.rpartition(".")
        setattr(model.get_submodule(above), last, plain)
    return replace(policy, model=model)


def logprobs(model, ids=PROMPT):
    rows = torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), -1)
    return rows[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]


def round_to_nf4(weight):
    """Round each block of 64 weights to the nearest of 16 values, times its largest weight."""
    values = bitsandbytes.functional.get_4bit_type("nf4", device="cpu")
    blocks = weight.flatten().split(64)
    scales = [block.abs().max().clamp(min=1e-30) for block in blocks]
    nearest = [(block[:, None] / scale - values).abs().argmin(1) for block, scale in zip(blocks, scales, strict=True)]
    return torch.cat([values[i] * scale for i, scale in zip(nearest, scales, strict=True)]).view(weight.shape)


@pytest.mark.parametrize("shape", [(16, 24), (3, 5), (64, 96), (64, 128)])
def test_weights_are_the_nearest_values_and_quantize_to_the_same_bits_again(shape):
    torch.manual_seed(0)
    plain = torch.nn.Linear(shape[1], shape[0])
    plain.weight.data[0] = 0
    layer = QuantizedLinear(plain)
    torch.testing.assert_close(layer.weight, round_to_nf4(plain.weight.data), rtol=0, atol=1e-7)
    if shape[1] % 64 == 0:  # for others, bitsandbytes 0.50 dequantizes wrongly on CPUs
        packed, state = bitsandbytes.functional.quantize_4bit(plain.weight.data, quant_type="nf4", blocksize=64)
        assert torch.equal(layer.weight, bitsandbytes.functional.dequantize_4bit(packed, state))
    plain.weight.data = layer.weight
    repeated = QuantizedLinear(plain)
    assert torch.equal(repeated.packed, layer.packed)
    assert torch.equal(repeated.scale_bits, layer.scale_bits)


def test_four_and_a_half_bits_per_weight():
    layer = QuantizedLinear(torch.nn.Linear(64, 128, bias=False))
    stored = sum(tensor.numel() * tensor.element_size() for tensor in layer.state_dict().values())
    assert stored == 64 * 128 * 4.5 / 8
    assert not list(layer.parameters())


def test_gradients_equal_those_over_the_dequantized_weights():
    policy = build()
    plain = dequantized(policy)
    for each in (policy, plain):
        logprobs(each.model).sum().backward()
    expected = dict(plain.model.named_parameters())
    gradients = {name: p.grad for name, p in policy.model.named_parameters() if p.requires_grad}
    assert len(gradients) == 2 * 2 * 7
    for name, gradient in gradients.items():
        assert gradient.abs().max() > 0
        torch.testing.assert_close(gradient, expected[name].grad, rtol=1e-5, atol=1e-7)


def test_backward_keeps_no_dequantized_weight():
    layer = QuantizedLinear(torch.nn.Linear(64, 128, bias=False))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(each.shape) or each, lambda each: each):
        layer(torch.randn(2, 64, requires_grad=True)).sum().backward()
    assert torch.Size((128, 64)) not in saved


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("bfloat16", 0.06)])
def test_the_engine_samples_from_the_weights_that_the_learner_trains(dtype, bound):
    policy = cast_policy(build(), dtype)

    async def sample():
        engine = ENGINES["local"](policy=policy, max_sequences=4)
        try:
            request = GenerateRequest(TokenSequence(PROMPT), Sampling(12, seed=1), "one")
            return type(engine), await engine.generate(request)
        finally:
            await engine.close()

    kind, generation = asyncio.run(sample())
    assert kind is LocalEngine  # which makes no merged copy
    ids = [*PROMPT, *generation.tokens]
    with torch.no_grad(), torch.autocast("cpu", policy.dtype, enabled=dtype != "float32"):
        own = logprobs(policy.model, ids)[len(PROMPT) - 1 :]
    assert generation.logprobs == pytest.approx(own.tolist(), abs=bound)


def test_a_checkpoint_restores_every_bit(tmp_path):
    policy = build()
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        save_policy(policy, folder)
        restored = load_policy(folder)
        assert adapter_shape(restored.model)["quantization"] == "nf4"
        state, expected = restored.model.state_dict(), policy.model.state_dict()
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], expected[name]) for name in expected)
        policy = restored


def test_precision_of_the_model_leaves_the_scales_unchanged():
    policy = build()
    before = {name: each for name, each in policy.model.state_dict().items() if "scale_bits" in name}
    policy.model.to(torch.bfloat16)
    assert all(torch.equal(policy.model.state_dict()[name], each) for name, each in before.items())


def test_merged_export_equals_the_policy():
    policy = build()
    with torch.no_grad():
        expected = logprobs(policy.model)
        merged = merge_adapters(build(), "float32")
        assert not is_quantized(merged.model)
        torch.testing.assert_close(logprobs(merged.model), expected, rtol=0, atol=1e-5)
        base = without_adapters(policy.model, merge=False)
        dequantize_linears(base)
        assert not any(isinstance(module, QuantizedLinear) for module in base.modules())


def test_weights_are_counted_as_those_of_the_unquantized_model():
    plain = build_tiny(["a b"], hidden=32, heads=2, layers=2, intermediate=48, context_length=64)
    count = plain.parameters
    quantize_linears(plain.model)
    assert plain.parameters == count
    assert count_quantized(plain.model) == 2 * (4 * 32 * 32 + 3 * 32 * 48)


def test_a_recipe_trains_adapters_on_quantized_weights():
    assembly = build_assembly(NF4)
    assert is_quantized(assembly.policy.model)
    assert all("lora_" in name for name, p in assembly.policy.model.named_parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["policy.lora.dora=true"], "policy.lora.dora: DoRA reads the norms of unquantized weights"),
        (["scale=local-ray"], "policy.lora.quantization: 4-bit weights are computed in one process"),
        (
            ["engine={name: vllm, address: 'http://127.0.0.1:8000'}"],
            "policy.lora.quantization: the server at engine.address has other base weights",
        ),
        (["policy.lora.quantization=int4"], "policy.lora.quantization: input should be 'nf4'"),
    ],
)
def test_what_cannot_be_trained_exactly_is_refused(overrides, line):
    with pytest.raises(RecipeError) as refused:
        load_recipe("demo", [NF4, *overrides])
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_model_without_linear_layers_is_refused():
    class Bare(torch.nn.Module):
        def get_output_embeddings(self):
            return None

    with pytest.raises(PolicyError, match="has no linear layer that can be quantized"):
        quantize_linears(Bare())
