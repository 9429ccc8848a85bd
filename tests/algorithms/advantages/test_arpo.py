"""What the tokens in front of a fork receive."""

import pytest
import torch
from hypothesis import given

from tests_batches import asked, batches, columns, of, whole
from whetstone.algorithms import clipped
from whetstone.algorithms.advantages import arpo


def near(*numbers):
    return pytest.approx(list(numbers), abs=1e-5)


OWNER, NODES = whole(0, 0, 1, 1, 2, 3), whole(0, 1, 0, 2, 3, 4)
REWARDS, GROUP = of(1, 0, 0, 0), whole(0, 0, 0, 0)


def said(**options):
    return arpo(REWARDS, GROUP, OWNER, NODES, **options).tolist()


def test_hard_and_soft():
    assert said() == near(0.499999, 1.499997, 0.499999, -0.499999, -0.499999, -0.499999)
    assert said(attribution="soft") == near(1.499997, 1.499997, *[-0.499999] * 4)
    assert said(ddof=0) == near(0.577350, 1.732051, 0.577350, *[-0.577350] * 3)


def test_they_part_once_the_clip_acts():
    # one shared token at ratio 1.3 with advantages 1.5 and −.5: soft 1.2·1.5 − 1.3·.5, hard twice 1.2·.5
    ratio = torch.tensor([1.3], dtype=torch.float64).log()
    old = torch.zeros(1, dtype=torch.float64)
    soft = -sum(clipped(ratio, old, of(a)).loss.item() for a in (1.5, -0.5))
    hard = -2 * clipped(ratio, old, of(0.5)).loss.item()
    assert (soft, hard) == (pytest.approx(1.15), pytest.approx(1.2))


@given(batch=batches(forks=False))
def test_without_forks_both_are_the_same(batch):
    found = columns(batch)
    assert torch.allclose(asked(arpo, found), asked(arpo, found, attribution="soft"), atol=1e-12)


def test_nodes_of_different_tasks_are_never_the_same():
    # both tasks have a node 7: together their mean would be 0
    found = arpo(of(1, 0, 0, 1), whole(0, 0, 1, 1), whole(0, 1, 2, 3), whole(7, 8, 7, 9))
    assert found.tolist() == near(0.707106, -0.707106, -0.707106, 0.707106)
