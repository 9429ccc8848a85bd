"""One kernel over all branches gives what one kernel a branch gives; where it does not, it is left alone.

Backward, and compiled, it runs on a GPU alone; here its plain form is compared, which gives the same numbers.
"""

import warnings

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from whetstone.learning import attention, flex
from whetstone.learning.attention import Branches

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
        found = flex.attend_at_once(query, key, value, TREE, **options, kernel=flex_attention)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_on_a_cpu_each_branch_has_a_kernel_of_its_own():
    assert not flex.suits(attention._branch_by_branch, attention._three_runs, tensors()[0])


@pytest.mark.parametrize(("factor", "used"), [(1.0, True), (1.1, False)])
def test_what_gives_other_numbers_is_left_alone_and_that_is_said(monkeypatch, factor, used):
    def at_once(query, key, value, branches, **options):
        return factor * attention._branch_by_branch(query, key, value, branches)

    monkeypatch.setattr(flex, "attend_at_once", at_once)
    given = (attention._branch_by_branch, attention._three_runs, torch.device("cpu"), torch.float32)
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert flex._agrees(*given) is used
    assert bool(said) is not used
