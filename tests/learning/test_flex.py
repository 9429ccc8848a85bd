"""One kernel over all branches computes the same as one kernel per branch; if it does not, it is not used.

Its compiled form and its backward pass need a GPU. On a CPU its uncompiled form is compared, with the same numbers.
"""

import warnings

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from tests_models import random_model
from tests_segments import segment
from whetstone.learning import attention, flex
from whetstone.learning.attention import Branches
from whetstone.learning.packing import pack
from whetstone.learning.token_outputs import TokenForward

TREE = Branches((0, 7, 7, 12, 0), (7, 5, 4, 6, 3), ((), (0,), (0,), (0, 1), ()))
"""A root of seven tokens, two that go on from it, one that goes on from the first of these, and another root."""
WAYS = {
    "plain": {},
    "window": {"window": 4},
    "chunks": {"chunk": 4},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": torch.tensor([0.3, -1.0, 2.0, 0.0])},
}


def tensors(kept=2):
    numbers = torch.Generator().manual_seed(1)
    return [torch.randn(1, heads, sum(TREE.lengths), 16, generator=numbers) for heads in (4, kept, kept)]


@pytest.mark.parametrize("way", WAYS)
def test_all_branches_at_once_are_what_each_is_by_itself(way):
    options = {"window": None, "chunk": None, "scaling": 0.2, "softcap": None, "sinks": None, **WAYS[way]}
    query, key, value = tensors()
    expected = attention._branch_by_branch(query, key, value, TREE, **options)
    with warnings.catch_warnings(action="ignore"):  # that it is not compiled
        mixed = flex.attend_at_once(query, key, value, TREE, **options, kernel=flex_attention)
    torch.testing.assert_close(mixed, expected, rtol=1e-4, atol=1e-5)


def options_of(way="plain"):
    return {"window": None, "chunk": None, "scaling": 0.2, "softcap": None, "sinks": None, **WAYS[way]}


def test_on_a_cpu_each_branch_has_a_kernel_of_its_own():
    assert not flex.suits(attention._branch_by_branch, attention._three_runs, *tensors(), options_of())


@pytest.mark.parametrize(("factor", "used"), [(1.0, True), (1.1, False)])
def test_what_gives_other_numbers_is_left_alone_and_that_is_said(monkeypatch, factor, used):
    def at_once(*inputs, **options):
        return factor * attention._branch_by_branch(*inputs, **options)

    monkeypatch.setattr(flex, "attend_at_once", at_once)
    inputs = (attention._branch_by_branch, attention._three_runs, *tensors(), options_of())
    with torch.no_grad(), warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        assert flex._agrees(*inputs) is used
    assert bool(recorded) is not used


class Strict:
    """Refuses operands of two precisions, as the backward pass of a compiled kernel does."""

    def __init__(self):
        self.dtypes = []

    def __call__(self, query, key, value, **options):
        self.dtypes.append({query.dtype, key.dtype, value.dtype})
        if len(self.dtypes[-1]) > 1:
            raise NotImplementedError("Backward pass with mixed query, key, and value dtype is not supported")
        block_mask = options.pop("block_mask")
        places = torch.arange(query.shape[2])
        seen = block_mask.mask_mod(None, None, places.unsqueeze(1), places.unsqueeze(0))
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        return scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=options["scale"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast_the_kernel_receives_operands_of_one_precision(monkeypatch, dtype):
    model, kernel = random_model("llama"), Strict()
    segments = [segment([*range(20), *own], [False] * 20 + [True] * 3, 1.0) for own in ([4, 9, 9], [4, 8, 7])]
    forward = TokenForward(model, dtype=dtype)
    (micro,) = pack(segments, token_budget=4096, device=torch.device("cpu"))
    expected = forward(micro, 1.0).logprobs
    monkeypatch.setattr(flex, "compiled", lambda: kernel)
    monkeypatch.setattr(flex, "suits", lambda *inputs: flex._agrees(*inputs))
    mixed = forward(micro, 1.0).logprobs
    mixed.sum().backward()
    assert kernel.dtypes
    assert all(each == {dtype} for each in kernel.dtypes)
    torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 3e-2)


def test_a_trial_leaves_no_gradient(monkeypatch):
    monkeypatch.setattr(flex, "attend_at_once", attention._branch_by_branch)
    inputs = [each.requires_grad_() for each in tensors()]
    options = {**options_of("sinks"), "sinks": torch.zeros(4, requires_grad=True)}
    assert flex._agrees(attention._branch_by_branch, attention._three_runs, *inputs, options)
    assert all(each.grad is None for each in (*inputs, options["sinks"]))


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: benchmarks/gpu/run.sh --only tests")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", WAYS)
def test_the_compiled_kernel_is_used_on_a_gpu(way, dtype):
    query, key, value = (each.repeat(1, 1, 1, 4).to("cuda", dtype) for each in tensors())
    options = options_of(way)
    if options["sinks"] is not None:
        options["sinks"] = options["sinks"].to("cuda", dtype)
    assert flex.suits(attention._branch_by_branch, attention._three_runs, query, key, value, options)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        mixed = query.float(), key.float(), value
        assert flex.suits(attention._branch_by_branch, attention._three_runs, *mixed, options)
