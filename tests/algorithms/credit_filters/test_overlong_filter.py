"""`overlong_filter` removes episodes that a limit truncated."""

import pytest
import torch

from support.batches import of
from whetstone.algorithms import annotated_removal_scope
from whetstone.algorithms.credit_filters import invalid_endings, overlong_filter
from whetstone.trajectory import RemovalScope


def test_truncated_episodes_are_removed_from_the_loss_or_from_the_batch():
    assert overlong_filter(of(0, 1)).tolist() == invalid_endings(of(0, 1)).tolist() == [1, 0]
    assert annotated_removal_scope(overlong_filter) is RemovalScope.LOSS_ONLY
    assert annotated_removal_scope(invalid_endings) is RemovalScope.BEFORE_BASELINE
    assert overlong_filter(of()).tolist() == []


@pytest.mark.parametrize("function", [overlong_filter, invalid_endings])
def test_weights_have_full_precision(function):
    assert function(of(0, 1)).dtype is torch.float64
