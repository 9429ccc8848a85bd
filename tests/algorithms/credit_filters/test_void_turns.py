"""`void_turns` removes episodes with a turn without a tool call or an answer."""

import pytest
import torch

from support.batches import integers, of
from whetstone.algorithms import annotated_removal_scope, group_relative
from whetstone.algorithms.credit_filters import void_turns
from whetstone.trajectory import RemovalScope


def test_trajectory_with_a_void_turn_is_removed_from_the_loss():
    rewards, group = of(1, 0, 0, 0), integers(0, 0, 0, 0)
    weights = void_turns(rewards, of(0, 0, 0, 1, 0), integers(0, 1, 2, 2, 3))
    assert weights.tolist() == [1, 1, 0, 1]
    assert weights.dtype is torch.float64
    # its reward stays in mean and deviation
    credit = weights * group_relative(rewards, group, ddof=0)
    assert credit.tolist() == pytest.approx([1.7321, -0.5774, 0, -0.5774], abs=1e-4)
    assert annotated_removal_scope(void_turns) is RemovalScope.LOSS_ONLY
