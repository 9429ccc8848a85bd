"""Bits of activations do not depend on the position of an element in a tensor."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import elu, gelu, mish, silu, softplus
from transformers.activations import ACT2FN

from whetstone.inference.deterministic_activations import (
    _padded_count,
    deterministic_activation,
    make_activations_deterministic,
)

TANH_GELU = partial(gelu, approximate="tanh")


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("width", [8, 16, 24, 96])
@pytest.mark.parametrize("activation", [silu, torch.sigmoid, mish, softplus, elu, gelu, TANH_GELU])
def test_bits_of_a_row_do_not_depend_on_other_rows(activation, width, threads):
    inputs = torch.randn(400, width, generator=torch.Generator().manual_seed(0))
    all_rows = deterministic_activation(activation, inputs)
    # two threads compute 343 rows of 96, 16,464 numbers each; in gelu also 171 rows
    for rows in (1, 3, 17, 33, 171, 343):
        assert torch.equal(deterministic_activation(activation, inputs[:rows]), all_rows[:rows])
        assert torch.equal(deterministic_activation(activation, inputs[5 : 5 + rows]), all_rows[5 : 5 + rows])
    assert torch.allclose(all_rows, activation(inputs))


@given(st.integers(0, 10**6), st.integers(1, 64))
def test_each_thread_computes_complete_vectors(count, threads):
    filled = _padded_count(count, threads)
    shares = min(threads, -(-filled // 32_768)) or 1
    assert filled >= count
    assert filled - count < 2 * 32 * threads * shares
    assert filled % (32 * shares) == 0
    assert filled <= 16_384 or filled % (32 * threads) == 0


def test_worked_numbers_of_the_padding():
    assert _padded_count(17 * 16, 2) == 288  # 272 = 8 · 32 + 16
    assert _padded_count(343 * 96, 2) == 32_960  # 32,928 = 2 · 16,464, and 16,464 = 514 · 32 + 16: shares of 515 · 32
    assert _padded_count(384 * 64, 2) == 384 * 64
    assert _padded_count(171 * 96, 2) == 16_448  # gelu: 16,416 = 2 · 8,208, and 8,208 = 256 · 32 + 16


def test_only_activations_of_a_model_are_replaced():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), ACT2FN["silu"], torch.nn.SiLU(), torch.nn.LayerNorm(4))
    inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    before = model(inputs)
    make_activations_deterministic(model)
    assert torch.allclose(model(inputs), before)
    types_after = [type(module) for module in model]
    assert types_after[0] is torch.nn.Linear
    assert types_after[3] is torch.nn.LayerNorm
    assert types_after[2] is not torch.nn.SiLU
    assert issubclass(types_after[2], torch.nn.SiLU)
