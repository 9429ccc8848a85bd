"""An activation's bits do not depend on where in a tensor a number lies."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import gelu, silu
from transformers.activations import ACT2FN

from whetstone.inference.activations import _even, even_activations, evened


@pytest.mark.parametrize("width", [8, 16, 24, 96])
@pytest.mark.parametrize("activation", [silu, torch.sigmoid, lambda x: gelu(x, approximate="tanh")])
def test_a_row_has_the_same_bits_whatever_rows_there_are(activation, width):
    inputs = torch.randn(400, width, generator=torch.Generator().manual_seed(0))
    whole = evened(activation, inputs)
    for rows in (1, 3, 17, 33, 171, 343):  # 343 rows of 96 are shared by two threads, 16,464 numbers each
        assert torch.equal(evened(activation, inputs[:rows]), whole[:rows])
        assert torch.equal(evened(activation, inputs[5 : 5 + rows]), whole[5 : 5 + rows])
    assert torch.allclose(whole, activation(inputs))


@given(st.integers(0, 10**6), st.integers(1, 64))
def test_each_threads_share_is_whole_vectors(count, threads):
    filled = _even(count, threads)
    shares = min(threads, -(-filled // 32_768)) or 1
    assert filled >= count
    assert filled - count < 2 * 32 * threads
    assert filled % (32 * shares) == 0


def test_how_far_is_filled_up():
    assert _even(17 * 16, 2) == 288  # 272 = 8 · 32 + 16
    assert _even(343 * 96, 2) == 32_960  # 32,928 = 2 · 16,464, and 16,464 = 514 · 32 + 16: shares of 515 · 32
    assert _even(384 * 64, 2) == 384 * 64


def test_a_models_activations_are_evened_and_its_other_modules_are_not():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), ACT2FN["silu"], torch.nn.SiLU(), torch.nn.LayerNorm(4))
    inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    before = model(inputs)
    even_activations(model)
    assert torch.allclose(model(inputs), before)
    kept = [type(module) for module in model]
    assert kept[0] is torch.nn.Linear
    assert kept[3] is torch.nn.LayerNorm
    assert kept[2] is not torch.nn.SiLU
    assert issubclass(kept[2], torch.nn.SiLU)
