"""ARPO: advantages of the tokens before a branching point."""

import pytest
import torch
from hypothesis import given

from support.batches import batches, call_with_columns, columns, integers, of
from whetstone.algorithms import clipped
from whetstone.algorithms.advantages import arpo


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


OWNER, NODES = integers(0, 0, 1, 1, 2, 3), integers(0, 1, 0, 2, 3, 4)
REWARDS, GROUP = of(1, 0, 0, 0), integers(0, 0, 0, 0)


def advantages_of_tree(**options):
    return arpo(REWARDS, GROUP, OWNER, NODES, **options).tolist()


def test_hard_and_soft():
    assert advantages_of_tree() == near(0.499999, 1.499997, 0.499999, -0.499999, -0.499999, -0.499999)
    assert advantages_of_tree(attribution="soft") == near(1.499997, 1.499997, *[-0.499999] * 4)
    assert advantages_of_tree(ddof=0) == near(0.577350, 1.732051, 0.577350, *[-0.577350] * 3)


def test_hard_and_soft_attribution_differ_once_clipping_applies():
    # one shared token at ratio 1.3 with advantages 1.5 and −.5: soft 1.2·1.5 − 1.3·.5, hard twice 1.2·.5
    ratio = torch.tensor([1.3], dtype=torch.float64).log()
    old = torch.zeros(1, dtype=torch.float64)
    soft = -sum(clipped(ratio, old, of(a)).loss.item() for a in (1.5, -0.5))
    hard = -2 * clipped(ratio, old, of(0.5)).loss.item()
    assert (soft, hard) == (pytest.approx(1.15), pytest.approx(1.2))


@given(batch=batches(forks=False))
def test_without_branches_both_attributions_are_equal(batch):
    batch_columns = columns(batch)
    assert torch.allclose(
        call_with_columns(arpo, batch_columns), call_with_columns(arpo, batch_columns, attribution="soft"), atol=1e-12
    )


def test_nodes_of_different_tasks_are_distinct():
    # both tasks have a node 7: together their mean would be 0
    result = arpo(of(1, 0, 0, 1), integers(0, 0, 1, 1), integers(0, 1, 2, 3), integers(7, 8, 7, 9))
    assert result.tolist() == near(0.707106, -0.707106, -0.707106, 0.707106)
