"""One kernel over all branches computes the same as one kernel per branch; if it does not, it is not used.

Its compiled form and its backward pass need a GPU. On a CPU its uncompiled form is compared, with the same numbers.
"""

import warnings

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention as flex_kernel
from torch.nn.functional import scaled_dot_product_attention

from support.models import random_model
from support.segments import segment
from whetstone.learning import flex_attention, tree_attention
from whetstone.learning.packing import pack_segments
from whetstone.learning.token_outputs import TokenForward
from whetstone.learning.tree_attention import Branches

TREE = Branches((0, 7, 7, 12, 0), (7, 5, 4, 6, 3), ((), (0,), (0,), (0, 1), ()))
"""A root of seven tokens with two children, a child of the first of these, and another root."""
WAYS = {
    "plain": {},
    "window": {"window": 4},
    "chunks": {"chunk": 4},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": torch.tensor([0.3, -1.0, 2.0, 0.0])},
}


def tensors(num_kept=2):
    numbers = torch.Generator().manual_seed(1)
    return [torch.randn(1, heads, sum(TREE.lengths), 16, generator=numbers) for heads in (4, num_kept, num_kept)]


@pytest.mark.parametrize("way", WAYS)
def test_one_kernel_equals_one_kernel_per_branch(way):
    options = {"window": None, "chunk": None, "scaling": 0.2, "softcap": None, "sinks": None, **WAYS[way]}
    query, key, value = tensors()
    expected = tree_attention._branch_by_branch(query, key, value, TREE, **options)
    with warnings.catch_warnings(action="ignore"):  # the warning that it is not compiled
        mixed = flex_attention.attend_in_one_kernel(query, key, value, TREE, **options, kernel=flex_kernel)
    torch.testing.assert_close(mixed, expected, rtol=1e-4, atol=1e-5)


def options_of(way="plain"):
    return {"window": None, "chunk": None, "scaling": 0.2, "softcap": None, "sinks": None, **WAYS[way]}


def test_each_branch_has_its_kernel_on_a_cpu():
    assert not flex_attention.supports_flex_attention(
        tree_attention._branch_by_branch, tree_attention._three_runs, *tensors(), options_of()
    )


@pytest.mark.parametrize(("factor", "used"), [(1.0, True), (1.1, False)])
def test_kernel_with_other_numbers_is_disabled_with_a_warning(monkeypatch, factor, used):
    def at_once(*inputs, **options):
        return factor * tree_attention._branch_by_branch(*inputs, **options)

    monkeypatch.setattr(flex_attention, "attend_in_one_kernel", at_once)
    inputs = (tree_attention._branch_by_branch, tree_attention._three_runs, *tensors(), options_of())
    with torch.no_grad(), warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        assert flex_attention._agrees(*inputs) is used
    assert bool(recorded) is not used


class StrictKernel:
    """A kernel that refuses operands of two precisions, like the backward pass of a compiled kernel."""

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
    model, kernel = random_model("llama"), StrictKernel()
    segments = [segment([*range(20), *own], [False] * 20 + [True] * 3, 1.0) for own in ([4, 9, 9], [4, 8, 7])]
    forward = TokenForward(model, dtype=dtype)
    (micro,) = pack_segments(segments, token_budget=4096, device=torch.device("cpu"))
    expected = forward(micro, 1.0).logprobs
    monkeypatch.setattr(flex_attention, "compile_flex_attention", lambda: kernel)
    monkeypatch.setattr(flex_attention, "supports_flex_attention", lambda *inputs: flex_attention._agrees(*inputs))
    mixed = forward(micro, 1.0).logprobs
    mixed.sum().backward()
    assert kernel.dtypes
    assert all(each == {dtype} for each in kernel.dtypes)
    torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 3e-2)


def test_a_trial_leaves_no_gradient(monkeypatch):
    monkeypatch.setattr(flex_attention, "attend_in_one_kernel", tree_attention._branch_by_branch)
    inputs = [each.requires_grad_() for each in tensors()]
    options = {**options_of("sinks"), "sinks": torch.zeros(4, requires_grad=True)}
    assert flex_attention._agrees(tree_attention._branch_by_branch, tree_attention._three_runs, *inputs, options)
    assert all(each.grad is None for each in (*inputs, options["sinks"]))


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: benchmarks/speed/gpu/run.sh --only tests")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", WAYS)
def test_the_compiled_kernel_is_used_on_a_gpu(way, dtype):
    query, key, value = (each.repeat(1, 1, 1, 4).to("cuda", dtype) for each in tensors())
    options = options_of(way)
    if options["sinks"] is not None:
        options["sinks"] = options["sinks"].to("cuda", dtype)
    assert flex_attention.supports_flex_attention(
        tree_attention._branch_by_branch, tree_attention._three_runs, query, key, value, options
    )
    with torch.autocast("cuda", dtype=torch.bfloat16):
        mixed = query.float(), key.float(), value
        assert flex_attention.supports_flex_attention(
            tree_attention._branch_by_branch, tree_attention._three_runs, *mixed, options
        )
