"""The compiled forward pass has the logits of the model, and a token's bits do not depend on other tokens."""

import contextlib

import pytest
import torch
from transformers import AutoModelForCausalLM, GraniteConfig, LlamaConfig, MistralConfig, Qwen3Config

from support.models import GROUPED
from whetstone.inference import describe_forward, missing_for
from whetstone.inference.compiled_decoder import _instructions, compiled_decoder
from whetstone.inference.forward import SlotForward
from whetstone.inference.llama_forward import find_blocks

SHAPE = {**GROUPED, "hidden_size": 200, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
SHAPE |= {"max_position_embeddings": 512, "intermediate_size": 178}
DTYPES = [
    pytest.param(
        dtype, marks=pytest.mark.skipif(compiled_decoder(dtype) is None, reason=missing_for(dtype) or ""), id=str(dtype)
    )
    for dtype in (torch.bfloat16, torch.float32)
]
TOLERANCE = {torch.bfloat16: 0.02, torch.float32: 1e-5}


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Lower the minimum size, so that a small model is compiled in float32 too."""
    monkeypatch.setattr("whetstone.inference.forward.SMALL", 0)


def llama(dtype, config=LlamaConfig, **others):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config(**{**SHAPE, **others})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.0 if dtype == torch.bfloat16 else 3.0)  # in bfloat16 rounding would be most of the logits
    return model.to(dtype)


def assert_near(results, exact, tolerance):
    assert (results.double() - exact.double()).norm() < tolerance * exact.double().norm()


def sample_rows(forward, *, spoil_copies=False):
    """Logits of prompts, and of six rows of which five share a prefix, computed in one pass and one by one."""
    prompt = [(5 * i) % 97 for i in range(150)]
    with torch.inference_mode():
        prompts = forward.compute_logits([0], [0], [prompt])
        for row in range(1, 5):
            forward.cache.copy(0, row, 140)
            forward.compute_logits([row], [140], [[row, 7, 8]])
        forward.compute_logits([7], [0], [prompt[:60]])
        rows, starts, new = [0, 1, 2, 3, 4, 7], [150, *[143] * 4, 60], [[11], *[[12 + i] for i in range(4)], [17]]
        if spoil_copies:
            for layer in forward.cache.layers:
                layer.keys[1:5, :, :140] = torch.nan
        together = forward.compute_logits(rows, starts, new, is_decode=True)
        alone = [
            forward.compute_logits([r], [s], [n], is_decode=True) for r, s, n in zip(rows, starts, new, strict=True)
        ]
    return prompts, together, torch.cat(alone)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("config", "others"),
    [
        (LlamaConfig, {}),
        (LlamaConfig, {"attention_bias": True, "num_hidden_layers": 1}),
        (LlamaConfig, {"head_dim": 96, "num_attention_heads": 2}),
        (LlamaConfig, {"head_dim": 128, "num_attention_heads": 10}),
        (Qwen3Config, {"head_dim": 64}),
    ],
)
def test_logits_equal_those_of_the_model_and_are_independent_of_other_sequences(dtype, config, others):
    model = llama(dtype, config, **others)
    forward = SlotForward(model, rows=9, context_length=512)
    assert forward._blocks.compiled is not None
    prompts, together, alone = sample_rows(forward)
    assert forward._blocks is not None  # the comparison with the forward pass of the model keeps them
    assert torch.equal(together, alone)
    own = SlotForward(model, rows=9, context_length=512)
    own._blocks, own._is_compared = None, True
    for results, exact in zip((prompts, together), sample_rows(own)[:2], strict=True):
        assert_near(results, exact, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_shared_prefix_is_read_from_one_slot(dtype):
    model = llama(dtype)
    results = [
        sample_rows(SlotForward(model, rows=9, context_length=512), spoil_copies=spoiled)[1]
        for spoiled in (False, True)
    ]
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", DTYPES)
def test_chunked_prefill_has_the_bits_of_one_pass_for_any_number_of_threads(dtype):
    model, prompts = llama(dtype), [[(5 * i + r) % 97 for i in range(20 + 61 * r)] for r in range(4)]
    results = []
    before = torch.get_num_threads()
    try:
        for threads, pieces in ((1, 200), (2, 200), (2, 17)):
            torch.set_num_threads(threads)
            forward = SlotForward(model, rows=5, context_length=512)
            with torch.inference_mode():
                if pieces == 200:
                    results.append(forward.compute_logits(range(4), [0] * 4, prompts, everywhere=True)[3, :203])
                else:
                    starts = range(0, 203, pieces)
                    parts = [
                        forward.compute_logits([3], [s], [prompts[3][s : s + pieces]], everywhere=True) for s in starts
                    ]
                    results.append(torch.cat(parts, dim=1)[0])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(results[0], other) for other in results[1:])
    with torch.no_grad():
        exact = model.double()(torch.tensor([prompts[3]])).logits[0]
    assert_near(results[0], exact, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_nonfinite_value_affects_only_its_sequence(dtype):
    model = llama(dtype)
    forward = SlotForward(model, rows=3, context_length=64)
    forward._is_compared = True
    with torch.inference_mode():
        model.model.embed_tokens.weight[96, 3] = torch.nan
        logits = forward.compute_logits([0, 1], [0, 0], [[1, 96, 2], [1, 2, 3]], everywhere=True)
    hidden = logits[..., :96].isnan()  # the head shares the weight
    assert hidden[0, 1:].all()
    assert not hidden[0, 0].any()
    assert not hidden[1].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_unsupported_models_are_computed_by_pytorch(dtype):
    assert find_blocks(SlotForward(llama(dtype), rows=1, context_length=64).model).compiled is not None
    for config, others in (
        (MistralConfig, {"sliding_window": 12}),
        (LlamaConfig, {"head_dim": 40}),
        (LlamaConfig, {"mlp_bias": True}),
        (LlamaConfig, {"hidden_act": "gelu"}),
    ):
        assert find_blocks(llama(dtype, config, **others)).compiled is None
    mixed = llama(dtype)
    mixed.model.norm.double()
    assert find_blocks(mixed).compiled is None


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_small_float32_model_is_compiled_and_otherwise_has_the_bits_of_its_forward_pass(dtype, monkeypatch):
    monkeypatch.setattr("whetstone.inference.forward.SMALL", 20_000_000)
    model = llama(dtype)
    compiled = SlotForward(model, rows=9, context_length=512)
    results = sample_rows(compiled)
    assert compiled._blocks.compiled is not None
    assert torch.equal(*results[1:])
    monkeypatch.setattr("whetstone.inference.llama_forward.compiled_decoder", lambda dtype: None)
    without_compiler, own = (SlotForward(model, rows=9, context_length=512) for _ in range(2))
    own._blocks, own._is_compared = None, True
    exact = sample_rows(own)[:2]
    for result, bits, other in zip(results, exact, sample_rows(without_compiler), strict=False):
        assert torch.equal(bits, other)
        assert_near(result, bits, TOLERANCE[dtype])
    assert without_compiler._blocks is not None
    assert without_compiler._blocks.compiled is None


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_small_model_with_a_custom_forward_pass_is_sampled_by_it(dtype, monkeypatch):
    monkeypatch.setattr("whetstone.inference.forward.SMALL", 20_000_000)
    model = llama(dtype, GraniteConfig, residual_multiplier=0.2, logits_scaling=3.0)
    forward = SlotForward(model, rows=9, context_length=512)
    assert forward._blocks.compiled is not None
    logits = sample_rows(forward)[0]
    with torch.no_grad():
        exact = model.double()(torch.tensor([[(5 * i) % 97 for i in range(150)]])).logits[0, -1:]
    assert forward._blocks is None
    assert_near(logits, exact, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_description_of_the_forward_pass_names_what_computes_a_model(dtype):
    described = {
        "llama": llama(dtype),
        "mlp with bias": llama(dtype, mlp_bias=True),
        "custom": llama(dtype, GraniteConfig, residual_multiplier=0.2, logits_scaling=3.0),
    }
    descriptions = {name: describe_forward(model) for name, model in described.items()}
    assert descriptions["llama"] == (True, "by compiled functions")
    assert descriptions["mlp with bias"][0]
    assert descriptions["mlp with bias"][1].endswith("its blocks have a part that they do not compute")
    assert not descriptions["custom"][0]
    assert "by the model's own blocks" in descriptions["custom"][1]


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [(None, "no C++ compiler: apt-get install g++"), ("/bin/false", "the compiler fails: no output")],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_blocks_are_computed_by_pytorch_without_a_compiler(monkeypatch, tmp_path, compiler, reason, dtype):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("whetstone.inference.compiled_decoder.shutil.which", lambda name: compiler)
    monkeypatch.setattr("whetstone.inference.compiled_decoder._instructions", lambda dtype: [])
    assert compiled_decoder.__wrapped__(dtype) is None
    assert missing_for(dtype) == reason
    with contextlib.suppress(FileNotFoundError):
        assert not list((tmp_path / "whetstone" / "compiled").iterdir())  # no partial file remains


def test_instruction_set_depends_on_the_processor_and_the_limit_of_pytorch(monkeypatch):
    monkeypatch.setattr("whetstone.inference.compiled_decoder.sys.platform", "linux")
    monkeypatch.setattr("whetstone.inference.compiled_decoder.platform.machine", lambda: "x86_64")
    capabilities = {"avx2": True, "fma3": True}
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: capabilities)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX2")
    capabilities |= dict.fromkeys(("avx512_f", "avx512_bw", "avx512_vl", "avx512_dq", "avx512_bf16"), True)
    assert _instructions(torch.float32) == ["-mavx2"]
    assert missing_for(torch.bfloat16) == "the processor has no AVX-512 with bfloat16"
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX512")
    assert "-mavx512f" in _instructions(torch.float32)
    assert "-mavx512bf16" in _instructions(torch.bfloat16)
    assert missing_for(torch.float16) == "the processor has no AVX2"
    capabilities.clear()
    assert missing_for(torch.float32) == "the processor has no AVX2"
