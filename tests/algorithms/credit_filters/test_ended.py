"""Episodes a limit cut short."""

import pytest
import torch

from tests_batches import of
from whetstone.algorithms import removal_scope_of
from whetstone.algorithms.credit_filters import invalid_endings, overlong_filter
from whetstone.trajectory import RemovalScope


def test_out_of_the_loss_or_out_of_everything():
    assert overlong_filter(of(0, 1)).tolist() == invalid_endings(of(0, 1)).tolist() == [1, 0]
    assert removal_scope_of(overlong_filter) is RemovalScope.LOSS_ONLY
    assert removal_scope_of(invalid_endings) is RemovalScope.BEFORE_BASELINE
    assert overlong_filter(of()).tolist() == []


@pytest.mark.parametrize("function", [overlong_filter, invalid_endings])
def test_what_a_trajectory_counts_for_is_a_number_in_the_whole_width(function):
    assert function(of(0, 1)).dtype is torch.float64
