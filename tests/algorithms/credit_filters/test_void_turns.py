"""Episodes that drifted off."""

import pytest
import torch

from tests_batches import of, whole
from whetstone.algorithms import group_relative, removal_scope_of
from whetstone.algorithms.credit_filters import void_turns
from whetstone.trajectory import RemovalScope


def test_the_third_of_four_is_void():
    rewards, group = of(1, 0, 0, 0), whole(0, 0, 0, 0)
    kept = void_turns(rewards, of(0, 0, 0, 1, 0), whole(0, 1, 2, 2, 3))
    assert kept.tolist() == [1, 1, 0, 1]
    assert kept.dtype is torch.float64
    # its reward stays in mean and deviation
    credit = kept * group_relative(rewards, group, ddof=0)
    assert credit.tolist() == pytest.approx([1.7321, -0.5774, 0, -0.5774], abs=1e-4)
    assert removal_scope_of(void_turns) is RemovalScope.LOSS_ONLY
