"""What is compiled between products gives what plain PyTorch gives, and a token does not tell who else is there."""

import contextlib

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen3Config

from tests_models import GROUPED
from whetstone.inference.blocks import blocks_of
from whetstone.inference.compiled import _INSTRUCTIONS, WIDTHS, compiled, lacking
from whetstone.inference.forward import RowForward

SHAPE = {**GROUPED, "hidden_size": 192, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32}
SHAPE |= {"max_position_embeddings": 512}
HALF = torch.bfloat16

needs_it = pytest.mark.skipif(
    compiled() is None, reason="no AVX-512 with bfloat16 here, or no C++ compiler: apt-get install g++"
)


def numbers(*shape, seed=0, scale=1.0):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(HALF)


def llama(config=LlamaConfig, **others):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config(**{**SHAPE, **others})).eval().to(HALF)


def near(found, exact, share=0.005):
    assert (found.double() - exact.double()).norm() < share * exact.double().norm()


@needs_it
@pytest.mark.parametrize("width", sorted(WIDTHS))
@pytest.mark.parametrize("group", [1, 3])
def test_attention_reads_a_beginning_from_another_row(width, group):
    kept, rows, capacity, lengths = 2, [0, 2, 3, 5], 64, [1, 40, 33, 64]
    keys, values = numbers(6, kept, capacity, width, seed=1), numbers(6, kept, capacity, width, seed=2)
    queries = numbers(len(rows), kept * group, width, seed=3)
    keys[3, :, :17], values[3, :, :17] = keys[2, :, :17], values[2, :, :17]
    whole = [torch.tensor(each) for each in (rows, rows, [0] * 4, lengths, [0, 1, 2, 3])]
    shared = [torch.tensor(each) for each in (rows, [0, 2, 2, 5], [0, 17, 17, 0], lengths, [3, 1, 2, 0])]
    functions = compiled()
    found = functions.attend(queries, keys, values, tuple(whole), width**-0.5, 2)
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        asked = queries[i].double().view(kept, group, width)
        scores = asked @ keys[row, :, :length].double().transpose(-1, -2) * width**-0.5
        near(found[i], (scores.softmax(-1) @ values[row, :, :length].double()).view(-1, width))
    keys[3, :, :17] = 9.0  # nobody reads them there
    assert torch.equal(functions.attend(queries, keys, values, tuple(shared), width**-0.5, 1), found)


@needs_it
@pytest.mark.parametrize("tokens", [1, 17, 64])
def test_what_lies_between_products_gives_the_formulas(tokens):
    functions, width, heads = compiled(), 64, 3
    states, added = numbers(192, tokens, seed=1, scale=3.0), numbers(192, tokens, seed=2)
    weight, sum_of_both = numbers(192, seed=3), states + added
    normed = functions.add_and_norm(states, added, weight, 1e-5, 1)
    assert torch.equal(states, sum_of_both)
    near(normed, torch.nn.functional.rms_norm(sum_of_both.t().double(), (192,), weight.double(), 1e-5).t())
    assert torch.equal(functions.add_and_norm(states, None, weight, 1e-5, 2), normed)

    angles = torch.randn(width, tokens, generator=torch.Generator().manual_seed(4))
    cos, sin = angles.cos().to(HALF), angles.sin().to(HALF)
    first, second = sum_of_both.double().view(heads, width, tokens).chunk(2, dim=1)
    turned = sum_of_both.double().view(heads, width, tokens) * cos + torch.cat((-second, first), dim=1) * sin
    places = torch.randperm(2 * tokens * heads)[: tokens * heads]
    for given, exact in (((cos, sin), turned), (None, sum_of_both.view(heads, width, tokens))):
        out = numbers(2 * tokens * heads, width, seed=5)
        untouched = out.clone()
        functions.turn(sum_of_both, given, out, places, 1)
        near(out[places], exact.permute(2, 0, 1).reshape(-1, width))
        others = torch.ones(len(out), dtype=torch.bool)
        others[places] = False
        assert torch.equal(out[others], untouched[others])

    gates, ups = numbers(192, tokens, seed=6, scale=20.0), numbers(192, tokens, seed=7)
    exact = torch.nn.functional.silu(gates.double()) * ups.double()
    near(functions.gate(gates, ups, 1), exact)


@needs_it
def test_what_is_no_number_is_not_hidden():
    functions = compiled()
    keys, queries = numbers(1, 1, 32, 32, seed=1), numbers(1, 1, 32, seed=2)
    keys[0, 0, 3, 5] = torch.nan
    seen = tuple(torch.tensor([each]) for each in (0, 0, 0, 20, 0))
    assert functions.attend(queries, keys, keys.nan_to_num(), seen, 1.0, 1).isnan().all()
    states = numbers(32, 2, seed=3)
    states[4, 1] = torch.nan
    normed = functions.add_and_norm(states, None, numbers(32), 1e-5, 1)
    assert normed[:, 1].isnan().all()
    assert normed[:, 0].isfinite().all()
    assert functions.gate(states, torch.ones_like(states), 1).isnan().sum() == 1


def drawn_rows(forward):
    """Logits of prompts, of six rows of which five begin alike, drawn for together and one by one."""
    prompt = [(5 * i) % 97 for i in range(150)]
    with torch.inference_mode():
        first = forward.logits([0], [0], [prompt])
        for row in range(1, 5):
            forward.cache.copy(0, row, 140)
            forward.logits([row], [140], [[row, 7, 8]])
        forward.logits([7], [0], [prompt[:60]])
        rows, starts, new = [0, 1, 2, 3, 4, 7], [150, *[143] * 4, 60], [[11], *[[12 + i] for i in range(4)], [17]]
        together = forward.logits(rows, starts, new, drawn=True)
        alone = [forward.logits([r], [s], [n], drawn=True) for r, s, n in zip(rows, starts, new, strict=True)]
    return first, together, torch.cat(alone)


@needs_it
@pytest.mark.parametrize("others", [{}, {"attention_bias": True}, {"num_hidden_layers": 1}])
def test_a_model_has_the_logits_of_its_own_pass_and_each_row_its_own(others):
    model = llama(**others)
    forward = RowForward(model, rows=9, context_length=512)
    assert forward._blocks.columns is not None
    first, together, alone = drawn_rows(forward)
    assert forward._blocks is not None  # it was compared, and kept
    assert torch.equal(together, alone)
    own = RowForward(model, rows=9, context_length=512)
    own._blocks, own._is_compared = None, True
    for found, exact in zip((first, together), drawn_rows(own)[:2], strict=True):
        near(found, exact, share=0.02)


@needs_it
def test_other_formulas_than_these_are_left_to_pytorch():
    assert blocks_of(RowForward(llama(), rows=1, context_length=64).model).columns is not None
    for config, others in ((Qwen3Config, {}), (MistralConfig, {"sliding_window": 12}), (LlamaConfig, {"head_dim": 40})):
        assert blocks_of(llama(config, **others)).columns is None
    assert blocks_of(llama(hidden_act="gelu")).columns is None
    assert blocks_of(llama().float()).columns is None


@needs_it
def test_what_is_there_lacks_nothing():
    assert lacking() is None


@pytest.mark.parametrize(
    ("compiler", "said"),
    [(None, "no C++ compiler: apt-get install g++"), ("/bin/false", "the compiler fails: it says nothing")],
)
def test_without_a_compiler_pytorch_does_it(monkeypatch, tmp_path, compiler, said):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("whetstone.inference.compiled.shutil.which", lambda name: compiler)
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: dict.fromkeys(_INSTRUCTIONS, True))
    monkeypatch.setattr("whetstone.inference.compiled.platform.machine", lambda: "x86_64")
    assert compiled.__wrapped__() is None
    assert lacking() == said
    with contextlib.suppress(FileNotFoundError):
        assert not list((tmp_path / "whetstone" / "compiled").iterdir())  # nothing half made is left


def test_another_processor_leaves_it_to_pytorch(monkeypatch):
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx512_f": True})
    assert compiled.__wrapped__() is None
    assert lacking() == "the processor has no AVX-512 with bfloat16"
