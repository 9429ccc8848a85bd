"""A cost per token for leaving the reference."""

import pytest

from tests_batches import of
from whetstone.algorithms.shaping import kl_penalty


def test_worked_numbers():
    found = kl_penalty(of(0, 0, 1), of(-1, -1, -1), of(-1.2, -0.9, -1.4), weight=0.1)
    assert found.tolist() == pytest.approx([-0.02, 0.01, 0.96])


def test_an_impossible_token_costs_no_more_than_the_bound():
    assert kl_penalty(of(0), of(-1), of(-1e4), weight=1.0).tolist() == [-20]
